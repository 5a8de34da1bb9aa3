"""The commands of `harness`, grouped by what they are for; each imports what it needs when it runs."""
