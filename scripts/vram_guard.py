"""The host's way in: a script that is always on. What it does is in ``lib_vram``."""

from modules import scripts

from lib_vram import callbacks
from lib_vram.guard.argument import TITLE


class VramGuard(scripts.Script):
    """Names the hooks."""

    def title(self):
        return TITLE

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        return callbacks.controls("img2img" if is_img2img else "txt2img")

    def before_process(self, p, *arguments):
        callbacks.before_process(p, arguments)

    def process_before_every_sampling(self, p, *arguments, **named):
        callbacks.before_sampling(p, named.get("x"))

    def post_sample(self, p, ps, *arguments):
        callbacks.after_sampling(p)

    def postprocess(self, p, processed, *arguments):
        callbacks.after_run(p)


callbacks.register()
