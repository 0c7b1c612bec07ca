"""Processes that work off a list, and are started anew where one hangs or breaks."""
import collections
import multiprocessing
import os
import time
from multiprocessing import connection


class NotStarted(Exception):
    """A process ended before it was ready."""


def _serve(channel, parent, make, arguments):
    """What a process does until it breaks or its parent ends."""
    work = make(*arguments)
    channel.send(None)
    broken = False
    while not broken and os.getppid() == parent:
        if channel.poll(1):
            answer, broken = work(channel.recv())
            channel.send((answer, broken))


class _Worker:
    def __init__(self, make, arguments):
        context = multiprocessing.get_context("fork")
        self.channel, end = context.Pipe()
        self.process = context.Process(target=_serve, args=(end, os.getpid(), make, arguments), daemon=True)
        self.process.start()
        end.close()
        self.task, self.since, self.ready = None, None, False

    def begin(self, task):
        self.task, self.since = task, time.monotonic()
        self.channel.send(task)

    def end(self):
        self.process.kill()
        self.process.join()
        self.channel.close()


class Pool:
    """Runs work = make(*arguments) in each of so many processes; work(task) returns (answer, whether this process can do no more)."""

    def __init__(self, processes, task_limit, deadline, make, *arguments):
        self.processes, self.task_limit, self.deadline = processes, task_limit, deadline
        self.make, self.arguments, self.workers = make, arguments, []

    def run(self, tasks, keep):
        """Hands out the tasks in their order until the deadline, by time.monotonic(), and ends the processes. keep(task, seconds, answer,
        error) gets the results; the answer is None where a process ended or took longer than the limit of a task."""
        waiting = collections.deque(tasks)
        try:
            while time.monotonic() < self.deadline and (waiting or any(worker.task is not None for worker in self.workers)):
                self._hand_out(waiting)
                answering = connection.wait([worker.channel for worker in self.workers], timeout=0.2)
                for worker in list(self.workers):
                    if worker.channel in answering:
                        self._receive(worker, keep)
                    elif worker.task is not None and time.monotonic() - worker.since > self.task_limit:
                        self._give_up(worker, f"took longer than {self.task_limit:g} s", keep)
        finally:
            for worker in self.workers:
                worker.end()
            self.workers = []

    def _hand_out(self, waiting):
        for worker in self.workers:
            if waiting and worker.ready and worker.task is None:
                worker.begin(waiting.popleft())
        coming = sum(not worker.ready for worker in self.workers)
        while len(self.workers) < self.processes and coming < len(waiting):
            self.workers.append(_Worker(self.make, self.arguments))
            coming += 1

    def _receive(self, worker, keep):
        try:
            message = worker.channel.recv()
        except (EOFError, ConnectionError):
            if not worker.ready:
                raise NotStarted from None
            return self._give_up(worker, "its process ended", keep)
        if worker.ready:
            task, worker.task = worker.task, None
            keep(task, time.monotonic() - worker.since, message[0], None)
            if message[1]:
                self._give_up(worker, None, keep)
        worker.ready = True

    def _give_up(self, worker, error, keep):
        worker.end()
        self.workers.remove(worker)
        if worker.task is not None:
            keep(worker.task, time.monotonic() - worker.since, None, error)
