"""Instructions about a passage or after a question, in several wordings each."""

import random

INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "summarise": (
        "Summarize the following text.",
        "Give a short summary of this passage.",
        "What is the main point of this? Answer in two sentences.",
        "Write a one-sentence summary of this.",
        "TL;DR:",
        "List the key points of this passage as bullet points.",
    ),
    "answer": (
        "Who is mentioned in this passage, and what do they do?",
        "What happens in the following text?",
        "Read this and explain why it happens.",
        "What can we learn from this passage?",
        "Ask three questions about this text and answer them.",
        "What is the mood of this? Quote words that show it.",
        "Explain the following text to a ten-year-old.",
    ),
    "rewrite": (
        "Rewrite this in simple modern English.",
        "Rewrite the following passage in your own words.",
        "Make this text shorter without losing its meaning.",
        "Rewrite this passage as a dialogue between two people.",
        "Turn the following into a short poem.",
        "Correct and improve the style of this text.",
    ),
    "continue": (
        "Continue the following text.",
        "Write the next paragraph of this.",
        "How could this go on? Write what happens next.",
    ),
    "translate": (
        "Translate this text into French.",
        "Translate the following into German.",
        "Translate this passage into Spanish.",
    ),
    "extract": (
        "Give this passage a title.",
        "List all names of people and places in this text.",
        "Which words in this passage are hard? Explain them.",
    ),
}
"""By task; each shorter than the 13 words by which barred prompts are known."""

AFTER_QUESTIONS = (
    "",
    "",
    "Think step by step.",
    "End with the number.",
    "Explain how you get the answer.",
)


def about_passage(passage: str, rng: random.Random) -> str:
    """A prompt that asks for one of the tasks, before or after the passage."""
    instruction = rng.choice(INSTRUCTIONS[rng.choice(tuple(INSTRUCTIONS))])
    first = instruction.endswith(":") or rng.random() < 0.4
    parts = (passage, instruction) if first else (instruction, passage)
    return "\n\n".join(parts)


def after_question(question: str, rng: random.Random) -> str:
    """A question of arithmetic, at times with how to answer it."""
    return f"{question} {rng.choice(AFTER_QUESTIONS)}".strip()
