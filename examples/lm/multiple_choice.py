"""Questions with several answers, of which a model should prefer the right one."""

import json
import math
from typing import NamedTuple

import glade
from glade.progress import Progress

from lm.program import ProgramError


class Question(NamedTuple):
    query: str
    choices: list
    gold: int  # the index of the right choice
    place: str  # for errors


def parse_question(line, place):
    try:
        fields = json.loads(line)
        json.dumps(fields, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except (ValueError, RecursionError):
        raise ProgramError(f"{place}: is not JSON") from None
    try:
        question = Question(fields["query"], fields["choices"], fields["gold"], place)
        texts = [question.query, *question.choices]
        is_right = isinstance(question.choices, list) and all(isinstance(text, str) for text in texts) and isinstance(question.gold, (int, float))
    except (KeyError, TypeError):
        is_right = False
    if not is_right:
        raise ProgramError(f'{place}: expected {{"query": text, "choices": [text, ...], "gold": index}}')
    if not question.choices:
        raise ProgramError(f"{place}: there are no choices")
    if "" in question.choices:
        raise ProgramError(f"{place}: a choice is empty")
    if type(question.gold) is not int or not 0 <= question.gold < len(question.choices):
        raise ProgramError(f"{place}: gold is {json.dumps(question.gold)}, expected the index of one of {len(question.choices)} choices")
    return question


def read_questions(file):
    """Reads a JSON object a line, with the fields query, choices and gold; others are ignored."""
    try:
        lines = file.read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise ProgramError(f"{file}: is no text in UTF-8: {error}") from None
    except OSError as error:
        raise ProgramError(f"{file}: cannot be opened: {error.strerror}") from None
    questions = [parse_question(line, f"{file} line {number}") for number, line in enumerate(lines, 1) if line.strip(" \t\r")]
    if not questions:
        raise ProgramError(f"{file}: has no questions")
    return questions


def encode(tokenizer, question, choice):
    """The tokens of the query and a choice, and how many of them are the query's. As lm-eval does it: spaces at the end of the query go to
    the choice, and the tokens of both together are cut where those of the query alone end."""
    tokens = tokenizer.encode(question.query + ("" if choice.startswith(" ") else " ") + choice)
    query = question.query.rstrip(" \t\n\r\f\v")
    if not query:
        raise ProgramError(f"{question.place}: the query is empty")
    context = len(tokenizer.encode(query))
    if context >= len(tokens):
        raise ProgramError(f"{question.place}: a choice adds no token to the query")
    return tokens, context


def log_likelihoods(model, requests):
    """Those of the choices after their queries, computed in one row."""
    head = model.lm_head.weight
    ids, cu_seqlens = [], [0]
    for tokens, _ in requests:
        ids += tokens[:-1]
        cu_seqlens.append(len(ids))
    x = model.model(glade.tensor([ids], device=head.device), None, glade.tensor(cu_seqlens))
    result = []
    for (tokens, context), begin, end in zip(requests, cu_seqlens, cu_seqlens[1:]):
        targets = glade.tensor([tokens[context:]], device=head.device)
        result.append(-glade.linear_cross_entropy(x[:, begin + context - 1 : end], head, targets, reduction="sum").item())
    return result


def share_right(questions, scores):
    """How many of the questions have the highest score at the right choice."""
    return sum(max(range(len(row)), key=row.__getitem__) == question.gold for question, row in zip(questions, scores)) / len(questions)


@glade.no_grad()
def multiple_choice(model, tokenizer, questions, batch):
    """acc, the share of questions whose right choice has the highest log-likelihood as a continuation of the query; acc_norm, the same by
    log-likelihood per byte of the choice; and the number of questions. A choice follows its query after a space unless it begins with one.
    The model reads `batch` choices at a time. ProgramError for a log-likelihood that is not finite."""
    requests = [encode(tokenizer, question, choice) for question in questions for choice in question.choices]
    found = []
    with Progress() as progress:
        while len(found) < len(requests):
            found += log_likelihoods(model, requests[len(found) : len(found) + batch])
            progress.show(len(found) / len(requests), f"{len(found)} of {len(requests)} answers")
    rest = iter(found)
    scores = [[next(rest) for _ in question.choices] for question in questions]
    for row, question in zip(scores, questions):
        if not all(map(math.isfinite, row)):
            raise ProgramError(f"{question.place}: the log-likelihood of a choice is not finite")
    by_byte = [[x / len(choice.encode()) for x, choice in zip(row, question.choices)] for row, question in zip(scores, questions)]
    return {"acc": share_right(questions, scores), "acc_norm": share_right(questions, by_byte), "questions": len(questions)}
