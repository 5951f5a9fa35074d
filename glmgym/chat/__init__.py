"""GLM chat, token in token out: rendering as deltas, parsing from ids, tokenizers and checkpoint templates."""

from glmgym.chat.chat import Chat, History
from glmgym.chat.checkpoint import check_dialect, load_chat
from glmgym.chat.template import apply_template
from glmgym.chat.tokenizer import Tokenizer, load_tokenizer
from glmgym.chat.wire import DialectName, Mark

__all__ = [
    "Chat",
    "DialectName",
    "History",
    "Mark",
    "Tokenizer",
    "apply_template",
    "check_dialect",
    "load_chat",
    "load_tokenizer",
]
