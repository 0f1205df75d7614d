"""The paper's claims, each judged from data: the ledger."""

from fedtaper.paper.audit import CLAIMS as _AUDIT
from fedtaper.paper.audit_images import CLAIMS as _AUDIT_IMAGES
from fedtaper.paper.claim import Check, Claim, Outcome, Study, pick, reproduce
from fedtaper.paper.regression import CLAIMS as _REGRESSION
from fedtaper.paper.theory import CLAIMS as _THEORY

LEDGER: dict[str, Claim] = {
    claim.id: claim for claim in (*_REGRESSION, *_THEORY, *_AUDIT, *_AUDIT_IMAGES)
}

__all__ = ["LEDGER", "Check", "Claim", "Outcome", "Study", "pick", "reproduce"]
