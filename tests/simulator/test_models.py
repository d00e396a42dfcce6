from dataclasses import replace

import pytest

from simulator.models import identify, model, models, published


def test_every_shape_has_a_source_and_sane_widths() -> None:
    assert len(models()) == 38
    for name, shape in models().items():
        assert shape.name == name
        assert published(name).source.strip()
        assert shape.layers > 0
        assert shape.heads % shape.kv_heads == 0
        assert (shape.experts > 0) == (shape.top_k > 0) == (shape.moe_ffn > 0)
        assert shape.max_seq >= 2048


def test_unknown_model_names_near_misses() -> None:
    with pytest.raises(ValueError, match=r"glm-4.5-air"):
        model("glm-45-air")
    assert model("GLM-4.5") is models()["glm-4.5"]


@pytest.mark.parametrize("name", models())
def test_identify_finds_every_model(name: str) -> None:
    shape = models()[name]
    found = identify(replace(shape, name="custom", max_seq=0))
    assert found is not None
    assert replace(models()[found], name=name, max_seq=shape.max_seq) == shape  # some papers share a shape


def test_identify_allows_dropped_mtp_and_padded_vocabulary_only() -> None:
    shape = model("glm-4.5")
    assert identify(replace(shape, mtp_layers=0, vocab=shape.vocab + 128)) == "glm-4.5"
    assert identify(replace(shape, mtp_layers=2)) is None
    assert identify(replace(shape, vocab=shape.vocab - 1)) is None
    assert identify(replace(shape, vocab=2 * shape.vocab)) is None
    assert identify(replace(shape, layers=shape.layers - 1)) is None
