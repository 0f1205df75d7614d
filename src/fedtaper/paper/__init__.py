"""The paper's claims, each judged from data: the ledger."""

from fedtaper.paper.claim import Check, Claim, Outcome, Study, pick, reproduce
from fedtaper.paper.regression import CLAIMS as _REGRESSION

LEDGER: dict[str, Claim] = {claim.id: claim for claim in (*_REGRESSION,)}

__all__ = ["LEDGER", "Check", "Claim", "Outcome", "Study", "pick", "reproduce"]
