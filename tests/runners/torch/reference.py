"""What transformers' own `generate` answers, greedily: prints one JSON list of texts and lengths.

Arguments: a model directory, the longest answer, then the prompts.
"""

import json
import sys
from operator import methodcaller

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar


def main() -> None:
    disable_progress_bar()
    folder, longest, *prompts = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        # called by name: its annotation refuses every model
        generate = methodcaller("generate", **inputs, max_new_tokens=int(longest), do_sample=False)
        output = generate(model)
        ids = output[0, inputs["input_ids"].shape[1] :].tolist()
        answers.append((tokenizer.decode(ids, skip_special_tokens=True), len(ids)))
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
