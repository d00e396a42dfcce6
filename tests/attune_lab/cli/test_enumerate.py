"""`attune enumerate`."""

ARGUMENTS = ("enumerate", "llama-3.1-405b", "--cluster", "512xH100-SXM5-80GB", "--top", "3")


def test_the_fastest_come_first_and_fit(attune):
    data = attune(*ARGUMENTS, "--json").json
    assert data["provenance"] == "simulated"
    assert len(data["best"]) == 3
    assert data["layouts_priced"] > data["layouts_that_fit"] > 0
    seconds = [row["step_time_s"] for row in data["best"]]
    assert seconds == sorted(seconds)
    assert seconds[0] <= data["baseline"]["step_time_s"]
    assert all(row["peak_memory_gib"] < 80 and row["usd_per_million_tokens"] > 0 for row in data["front"])


def test_people_get_a_table(attune):
    outcome = attune(*ARGUMENTS)
    assert outcome.code == 0
    assert "Fastest that fit" in outcome.stdout
