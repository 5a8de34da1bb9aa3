"""Problems and rewards: data, prompts, extraction, graders, reward recipes and judges; imports no torch."""
