"""What kind of program a process is, from its name, its command line and where it lies: one table."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal[
    "this", "webui", "zombie", "training", "language_model", "python", "browser", "game", "launcher", "desktop",
    "recorder", "video", "drawing", "chat", "wallpaper", "other", "hidden",
]  # fmt: skip
"""``this`` is this WebUI, ``zombie`` one that nobody can reach any more, ``hidden`` what is not shown to us."""

_BY_NAME: dict[Kind, tuple[str, ...]] = {
    "browser": (
        "chrome", "chromium", "chromium-browser", "google-chrome", "firefox", "firefox-esr", "firefox-bin", "msedge",
        "msedgewebview2", "microsoft-edge", "opera", "opera_gx", "brave", "brave-browser", "vivaldi", "vivaldi-bin",
        "safari", "librewolf", "waterfox", "zen", "floorp", "thorium", "arc", "webkitwebprocess",
        "com.apple.webkit.gpu", "virtual-browser",
    ),
    "launcher": (
        "steam", "steamwebhelper", "epicgameslauncher", "epicwebhelper", "battle.net", "eadesktop",
        "eabackgroundservice",
        "origin", "ubisoftconnect", "upc", "uplaywebcore", "galaxyclient", "galaxyclient helper", "riotclientservices",
        "riotclientux", "leagueclientux", "xboxpcapp", "gamingservices", "lutris", "heroic", "rockstarservice",
        "launcher", "playnite.desktopapp",
    ),
    "game": (
        "cs2", "csgo", "dota2", "valorant-win64-shipping", "fortniteclient-win64-shipping", "league of legends",
        "overwatch", "gta5", "gtav", "rdr2", "cyberpunk2077", "eldenring", "minecraft.windows", "genshinimpact",
        "starrail", "zenlesszonezero", "robloxplayerbeta", "r5apex", "helldivers2", "bg3", "bg3_dx11", "witcher3",
        "starfield", "palworld-win64-shipping", "hogwartslegacy", "wow", "ffxiv_dx11", "pubg", "tslgame", "cod",
        "rocketleague", "destiny2", "escapefromtarkov", "rustclient", "factorio", "stellaris", "civilizationvi",
    ),
    "desktop": (
        "dwm", "explorer", "csrss", "searchhost", "searchapp", "startmenuexperiencehost", "shellexperiencehost",
        "shellhost", "textinputhost", "applicationframehost", "systemsettings", "lockapp", "widgets", "taskmgr",
        "sihost", "winlogon", "logonui", "phoneexperiencehost", "nvidia overlay", "nvidia share", "nvidia app",
        "nvcontainer", "xorg", "x", "xwayland", "gnome-shell", "mutter", "kwin_wayland", "kwin_x11", "plasmashell",
        "cinnamon", "xfwm4", "marco", "sway", "hyprland", "cosmic-comp", "gnome-remote-desktop-daemon", "gdm",
        "sddm-greeter", "windowserver", "dock", "finder", "nautilus", "windowsterminal",
    ),
    "recorder": ("obs", "obs64", "obs32", "streamlabs obs", "xsplit.core", "medal", "gamebar", "gamebarftserver"),
    "video": (
        "vlc", "mpv", "mpc-hc64", "mpc-be64", "potplayermini64", "ffmpeg", "ffplay", "handbrake", "resolve",
        "adobe premiere pro", "afterfx", "kdenlive", "shotcut", "topaz video ai", "kodi", "movies & tv", "totem",
    ),
    "drawing": (
        "blender", "photoshop", "krita", "gimp", "gimp-2.10", "gimp-3.0", "unrealeditor", "ue4editor", "unity",
        "godot", "lightroom", "clipstudiopaint", "illustrator", "3dsmax", "maya", "cinema 4d", "topaz photo ai",
        "upscayl", "inkscape", "figma", "affinity photo 2", "daz studio", "substance painter",
    ),
    "chat": (
        "discord", "slack", "teams", "ms-teams", "telegram", "telegram-desktop", "whatsapp", "signal", "signal-desktop",
        "skype", "zoom", "spotify", "thunderbird", "obsidian", "code", "cursor",
    ),
    "wallpaper": ("wallpaper64", "wallpaper32", "wallpaperengine", "lively", "rainmeter"),
    "language_model": (
        "ollama", "ollama_llama_server", "ollama-runner", "llama-server", "llama-cli", "lm studio", "lmstudio",
        "koboldcpp", "koboldcpp_cu12", "jan", "gpt4all", "tabbyapi", "vllm", "llamafile",
    ),
}  # fmt: skip
_NAMES: dict[str, Kind] = {name: kind for kind, names in _BY_NAME.items() for name in names}

GAME_FOLDERS = (
    "/steamapps/common/", "/epic games/", "/riot games/", "/xboxgames/", "/gog galaxy/games/", "/gog games/",
    "/ubisoft game launcher/games/", "/battle.net/", "/ea games/", "/origin games/", "/games/",
    "/windowsapps/microsoft.minecraft",
)  # fmt: skip
"""Where shops put games: a program that lies there is one, whatever it is called."""

_PYTHON = re.compile(r"(python|pypy)[wt]?\d*(\.\d+)?")

WEBUIS: tuple[tuple[str, str], ...] = (
    ("comfyui", "ComfyUI"), ("forge-neo", "Forge Neo"), ("reforge", "reForge"), ("forge", "Forge"),
    ("automatic1111", "AUTOMATIC1111"), ("stable-diffusion-webui", "AUTOMATIC1111"), ("sd.next", "SD.Next"),
    ("sdnext", "SD.Next"), ("invokeai", "InvokeAI"), ("fooocus", "Fooocus"), ("swarmui", "SwarmUI"),
    ("sd-webui", "AUTOMATIC1111"), ("diffusionbee", "DiffusionBee"), ("stability matrix", "Stability Matrix"),
    ("stabilitymatrix", "Stability Matrix"), ("webui", "WebUI"),
)  # fmt: skip
"""Parts of a path by which a WebUI's folder is known, the more telling first, and its name."""
_SCRIPTS = frozenset(
    ("launch.py", "webui.py", "main.py", "entry_with_update.py", "invokeai-web", "invoke.py", "server.py")
)
"""The files by which WebUIs are started."""
_OWN_SCRIPTS = frozenset(("launch.py", "webui.py", "entry_with_update.py", "invokeai-web"))
"""Those that nothing else is usually called."""
_TRAINING = (
    "sd-scripts",
    "kohya",
    "onetrainer",
    "ai-toolkit",
    "train_network",
    "sdxl_train",
    "flux_train",
    "diffusion-pipe",
)
_LANGUAGE_MODELS = ("text-generation-webui", "vllm", "exllama", "tabbyapi", "koboldcpp", "llama_cpp", "sglang")


def is_python(name: str) -> bool:
    """Whether ``name`` is that of a Python interpreter."""
    return _PYTHON.fullmatch(_bare(name)) is not None


def kind_of(name: str, command: tuple[str, ...] = (), folder: str = "", program: str = "") -> Kind:
    """Return the kind of the process called ``name``.

    ``command`` is its command line, ``folder`` where it was started, ``program`` the path of its file; ``""`` where
    they are not shown to us.
    """
    if not name:
        return "hidden"
    if is_python(name):
        return _python_kind(command, folder)
    known = _NAMES.get(_bare(name))
    if known is not None:
        return known
    path = program.replace("\\", "/").lower() or next(iter(command), "").replace("\\", "/").lower()
    if any(part in path for part in GAME_FOLDERS):
        return "game"
    if _bare(name) in ("java", "javaw") and "minecraft" in " ".join(command).lower():
        return "game"
    return "other"


def webui_name(command: tuple[str, ...], folder: str) -> str:
    """Return the name of the WebUI that a Python with this command line runs, ``""`` when it is none."""
    script = script_of(command)
    if script.rpartition("/")[2] not in _SCRIPTS:
        return ""
    where = f"{folder.replace(chr(92), '/').lower()}/{script}"
    for part, name in WEBUIS:
        if part in where:
            return name
    return "WebUI" if script.rpartition("/")[2] in _OWN_SCRIPTS else ""


def _python_kind(command: tuple[str, ...], folder: str) -> Kind:
    text = f"{folder} {' '.join(command)}".replace("\\", "/").lower()
    if any(part in text for part in _LANGUAGE_MODELS):
        return "language_model"
    if any(part in text for part in _TRAINING):
        return "training"
    return "webui" if webui_name(command, folder) else "python"


def script_of(command: tuple[str, ...]) -> str:
    """Return what a Python runs, in lower case: the first argument that is no switch of Python's own."""
    rest = [item for item in command[1:] if item]
    for place, item in enumerate(rest):
        if item == "-m" and place + 1 < len(rest):
            return rest[place + 1].lower()
        if item == "-c":
            return ""
        if not item.startswith("-"):
            return item.replace("\\", "/").lower()
    return ""


def _bare(name: str) -> str:
    return name.lower().removesuffix(".exe").removesuffix(".bin").strip()
