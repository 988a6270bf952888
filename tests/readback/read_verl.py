"""Run in an exported folder by the Python of `.venv-engines`: veRL's own configuration, data set
and loader of rewards read it.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, ".")
for split in ("train", "validation"):
    words = [sys.executable, "render.py", f"data/{split}.jsonl", f"data/{split}.verl.jsonl", "verl"]
    subprocess.run(words, check=True)

import flywheel_environment  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from verl.trainer.ppo.reward import get_custom_reward_fn  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset  # noqa: E402
from verl.utils.tokenizer import hf_tokenizer  # noqa: E402
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder  # noqa: E402

with initialize_config_dir(str(Path("config").resolve()), version_base=None):
    config = compose("run")
policy = config.actor_rollout_ref
model, actor = omega_conf_to_dataclass(policy.model), omega_conf_to_dataclass(policy.actor)
omega_conf_to_dataclass(policy.rollout)
omega_conf_to_dataclass(config.algorithm)
assert model.lora_rank > 0 and actor.clip_ratio_high > 0
tokenizer = hf_tokenizer("model")
tokenizer.chat_template = policy.model.custom_chat_template
rows = RLHFDataset(data_files=config.data.train_files, tokenizer=tokenizer, config=config.data)
prompt = list(rows[0]["raw_prompt"])
ids = ContinuousTokenBuilder(tokenizer).build_initial_tokens(prompt)
assert ids == tokenizer(prompt[0]["content"], add_special_tokens=False)["input_ids"], (
    "the tokens are not the rendered prompt's"
)
flywheel_environment.post = lambda route, body: {"reward": 0.5}
score = get_custom_reward_fn(config)("flywheel", "hi", rows[0]["reward_model"]["ground_truth"])
assert score == {"score": 0.5, "masked": 0.0}, score
print("READ", len(rows))
