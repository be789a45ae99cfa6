from __future__ import annotations

import pytest

from lib_vram.machine.kinds import kind_of, webui_name


@pytest.mark.parametrize(
    ("name", "command", "folder", "program", "kind"),
    [
        ("chrome.exe", (), "", "", "browser"),
        ("firefox", (), "", "", "browser"),
        ("msedgewebview2.exe", (), "", "", "browser"),
        ("steamwebhelper", (), "", "", "launcher"),
        ("EpicGamesLauncher.exe", (), "", "", "launcher"),
        ("Cyberpunk2077.exe", (), "", "", "game"),
        ("hl2_linux", (), "", "/home/a/.steam/steamapps/common/Half-Life 2/hl2_linux", "game"),
        ("Obscure.exe", (), "", r"D:\SteamLibrary\steamapps\common\Obscure\Obscure.exe", "game"),
        ("javaw.exe", ("javaw.exe", "-cp", "net.minecraft.client.main.Main"), "", "", "game"),
        ("java", ("java", "-jar", "server.jar"), "", "", "other"),
        ("dwm.exe", (), "", "", "desktop"),
        ("Xorg", (), "", "", "desktop"),
        ("gnome-shell", (), "", "", "desktop"),
        ("obs64.exe", (), "", "", "recorder"),
        ("blender", (), "", "", "drawing"),
        ("Discord.exe", (), "", "", "chat"),
        ("wallpaper64.exe", (), "", "", "wallpaper"),
        ("ollama.exe", (), "", "", "language_model"),
        ("LM Studio.exe", (), "", "", "language_model"),
        ("steamroller-sim", (), "", "", "other"),
        ("", (), "", "", "hidden"),
        ("python3.11", ("python3.11", "-u", "launch.py"), "/home/a/stable-diffusion-webui", "", "webui"),
        ("python.exe", ("python.exe", "main.py", "--listen"), r"D:\ComfyUI_windows_portable\ComfyUI", "", "webui"),
        ("python", ("python", "/opt/ComfyUI/main.py"), "/", "", "webui"),
        ("python", ("python", "main.py"), "/home/a/game-of-life", "", "python"),
        ("pythonw.exe", ("pythonw.exe", "webui.py"), "", "", "webui"),
        ("python3", ("python3", "train_network.py"), "/home/a/sd-scripts", "", "training"),
        ("python3", ("python3", "server.py"), "/home/a/text-generation-webui", "", "language_model"),
        ("python3", ("python3", "-c", "launch.py"), "/home/a/stable-diffusion-webui", "", "python"),
        ("python3", ("python3", "-m", "pip", "install", "x"), "/home/a/stable-diffusion-webui", "", "python"),
        ("python3", (), "", "", "python"),
        ("pythonista", (), "", "", "other"),
    ],
)  # fmt: skip
def test_programs_are_named_as_what_they_are(name, command, folder, program, kind):
    assert kind_of(name, command, folder, program) == kind


@pytest.mark.parametrize(
    ("command", "folder", "name"),
    [
        (("python", "launch.py"), "/home/a/stable-diffusion-webui-forge", "Forge"),
        (("python", "launch.py"), "/home/a/stable-diffusion-webui-reForge", "reForge"),
        (("python", "launch.py"), "/home/a/sd-webui-forge-neo", "Forge Neo"),
        (("python", "launch.py"), "/home/a/stable-diffusion-webui", "AUTOMATIC1111"),
        (("python", "-s", r"ComfyUI\main.py"), r"C:\ai", "ComfyUI"),
        (("python", "entry_with_update.py"), "/home/a/Fooocus", "Fooocus"),
        (("python", "launch.py"), "/srv/pictures", "WebUI"),
        (("python", "main.py"), "/srv/pictures", ""),
        (("python", "setup.py"), "/home/a/ComfyUI", ""),
        ((), "/home/a/ComfyUI", ""),
    ],
)
def test_a_webui_is_named_by_its_script_and_its_folder(command, folder, name):
    assert webui_name(command, folder) == name
