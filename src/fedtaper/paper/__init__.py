"""The paper's claims, each judged from data: the ledger."""

from fedtaper.paper.audit import CLAIMS as _AUDIT
from fedtaper.paper.audit_challenges import CLAIMS as _AUDIT_CHALLENGES
from fedtaper.paper.audit_images import CLAIMS as _AUDIT_IMAGES
from fedtaper.paper.claim import Check, Claim, Outcome, Study, pick, reproduce
from fedtaper.paper.coverage import CLAIMS as _COVERAGE
from fedtaper.paper.eeg import CLAIMS as _EEG
from fedtaper.paper.eeg_audit import CLAIMS as _EEG_AUDIT
from fedtaper.paper.images import CLAIMS as _IMAGES
from fedtaper.paper.moving import CLAIMS as _MOVING
from fedtaper.paper.moving_race import CLAIMS as _RACE
from fedtaper.paper.outcomes import CLAIMS as _OTHER_OUTCOMES
from fedtaper.paper.regression import CLAIMS as _REGRESSION
from fedtaper.paper.theory import CLAIMS as _THEORY

_OUTCOMES: list[Claim] = sorted([*_OTHER_OUTCOMES, *_COVERAGE], key=lambda claim: claim.id)
_STUDIES = (_AUDIT, _AUDIT_IMAGES, _AUDIT_CHALLENGES, _EEG, _EEG_AUDIT, _OUTCOMES)
_FAMILIES = (_REGRESSION, _IMAGES, _THEORY, *_STUDIES, _MOVING, _RACE)
LEDGER: dict[str, Claim] = {claim.id: claim for family in _FAMILIES for claim in family}

__all__ = ["LEDGER", "Check", "Claim", "Outcome", "Study", "pick", "reproduce"]
