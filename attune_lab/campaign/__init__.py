"""Campaigns: the budget, the runs, the store, and the protocol that leads from a baseline to a shipped recipe."""

from attune_lab.campaign.budget import BudgetRequest, parse_budget
from attune_lab.campaign.campaign import run_campaign
from attune_lab.campaign.result import CampaignResult
from attune_lab.campaign.runner import Observer
from attune_lab.campaign.spec import CampaignSpec

__all__ = ["BudgetRequest", "CampaignResult", "CampaignSpec", "Observer", "parse_budget", "run_campaign"]
