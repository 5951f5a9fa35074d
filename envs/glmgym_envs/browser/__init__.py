"""Browser environments: MiniWoB++ pages (``miniwob-v0``, ``miniwob-all-v0``) and a small web shop (``shop-v0``).

Importing this starts nothing and needs neither playwright nor a browser; the first episode does.
"""

from glmgym.registry import register
from glmgym.tasks import procedural
from glmgym_envs.browser.env import BrowserEnv, live_oracle
from glmgym_envs.browser.miniwob import MiniWob, MiniWobTasks
from glmgym_envs.browser.miniwob_experts import EXPERTS
from glmgym_envs.browser.miniwob_pages import PAGES
from glmgym_envs.browser.shop import tasks as shop_tasks
from glmgym_envs.browser.shop.env import Shop

__all__ = ["MINIWOB", "MINIWOB_ALL", "SHOP", "BrowserEnv", "MiniWob", "Shop"]

MINIWOB = register(
    "miniwob-v0",
    MiniWob,
    tasks=MiniWobTasks(sorted(EXPERTS), "miniwob-v0"),
    oracle=live_oracle(MiniWob, lambda task: EXPERTS[str(task.data["page"])]),
    max_turns=30,
    description="MiniWoB++ pages that a scripted expert solves, seeded and graded on the raw reward.",
)
MINIWOB_ALL = register(
    "miniwob-all-v0",
    MiniWob,
    tasks=MiniWobTasks(PAGES, "miniwob-all-v0"),
    max_turns=30,
    description="Every MiniWoB++ page that can be played with actions on elements.",
)
SHOP = register(
    "shop-v0",
    Shop,
    tasks=procedural(shop_tasks.make, train=10_000, heldout=256, name="shop-v0"),
    oracle=live_oracle(Shop, shop_tasks.expert),
    max_turns=50,
)
