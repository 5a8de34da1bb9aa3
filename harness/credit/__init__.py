"""True credit of every token, and how well the algorithms' advantages agree with it."""
