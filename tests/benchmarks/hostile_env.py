"""An environment of a user's own, for tests of what may be imported."""

import gymnasium as gym

gym.register("Lake-v0", "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", max_episode_steps=20)
