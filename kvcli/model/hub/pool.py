"""Work that must not keep anyone waiting: bounded in time, and several pieces side by side.

All of it runs in threads that end with the process: no timeout of a transport bounds a server that sends a byte a second.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from kvcli.model.hub.errors import SlowAnswer

#: Requests under way at once: enough to hide the round trips, few enough for any server.
WORKERS = 12

S = TypeVar("S")
T = TypeVar("T")


def within(limit_s: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; raises SlowAnswer after `limit_s` seconds, whatever it is doing then."""
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = results.get(timeout=limit_s)
    except queue.Empty:
        raise SlowAnswer from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # work's own None is a T


def each(items: Sequence[S], work: Callable[[S], T], workers: int = WORKERS) -> list[T]:
    """`work(item)` for all items, in their order. The first failure is raised; no further item is begun after it."""
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    waiting = iter(enumerate(items))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number, item = next(waiting, (-1, None))
            if number < 0 or failures:
                return
            try:
                results[number] = work(item)  # type: ignore[arg-type]  # None only with the number -1
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(workers, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(items))]
