"""The live page of ``fedtaper ui``: runs of a folder, a studio, claims and audits."""
