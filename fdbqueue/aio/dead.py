"""Dead letters, awaited."""

from fdbqueue.aio.aside import AsideFace
from fdbqueue.aio.handle import HandleFace
from fdbqueue.aio.verbs import Maker, awaited
from fdbqueue.tasks.dead.letters import DeadLetters as BlockingDeadLetters


class DeadLetters(HandleFace[BlockingDeadLetters], AsideFace[BlockingDeadLetters]):
    """`fdbqueue.DeadLetters`, awaited."""

    __slots__ = ()

    open = Maker(BlockingDeadLetters.open)

    classes = awaited(BlockingDeadLetters.classes)
    tasks = awaited(BlockingDeadLetters.tasks)
    kick = awaited(BlockingDeadLetters.kick)
    kick_matching = awaited(BlockingDeadLetters.kick_matching)
    kick_some = awaited(BlockingDeadLetters.kick_some)
    edit = awaited(BlockingDeadLetters.edit)
    redrive = awaited(BlockingDeadLetters.redrive)
    begin_redrive = awaited(BlockingDeadLetters.begin_redrive)
    run_redrive = awaited(BlockingDeadLetters.run_redrive)
    step_redrive = awaited(BlockingDeadLetters.step_redrive)
    pause_redrive = awaited(BlockingDeadLetters.pause_redrive)
    resume_redrive = awaited(BlockingDeadLetters.resume_redrive)
    stop_redrive = awaited(BlockingDeadLetters.stop_redrive)
