"""Draft trees inside an existing Transformers program, with its own sampling options and output."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import draftwood
from draftwood.loading import hub

folder = hub.resolve("smollm2-135m")
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
inputs = tokenizer("The capital of France is", return_tensors="pt")

plain = model.generate(**inputs, max_new_tokens=24, do_sample=False)
with_trees = draftwood.custom_generate("lookup")
faster = model.generate(**inputs, max_new_tokens=24, do_sample=False, custom_generate=with_trees)
print(tokenizer.decode(faster[0]))
print("the same tokens:", torch.equal(plain, faster))
