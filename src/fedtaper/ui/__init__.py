"""The live page of ``fedtaper ui``: a folder's runs, a studio, claims and audits."""
