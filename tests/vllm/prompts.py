# SPDX-License-Identifier: Apache-2.0
"""Prompts of a wanted length."""


def words(count, topic):
    """A text of about that many words; another topic differs from the first word on."""
    return f"{topic} " + " ".join(f"question {i % 10} about {topic}" for i in range(count // 5))


def user(text):
    return [{"role": "user", "content": text}]
