"""Published claims as declarative files, and their verdicts."""

from harness.claims.schema import Claim, claim_names, load_claim, load_claim_file

__all__ = ["Claim", "claim_names", "load_claim", "load_claim_file"]
