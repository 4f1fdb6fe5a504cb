"""Weights are packed once, the same numbers come from the file, and the original is not read again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_writing import TOKENS, write_gguf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from draftwood.loading import hub, packed
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import load_model
from draftwood.models.native import NativeModel, Products
from draftwood.storage import memory
from families import CONFIGURATIONS
