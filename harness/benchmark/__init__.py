"""How fast the harness is, against TRL, against the machine, and with size: `harness benchmark`."""
