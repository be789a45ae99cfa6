import json
import re
import socket

import pytest
from starlette.testclient import TestClient

from lib_vram.lab.__main__ import ADDRESS, main
from lib_vram.lab.drawing import draw
from lib_vram.lab.server import make_app
from lib_vram.message import LANGUAGES, sentence


@pytest.fixture(scope="module")
def client():
    return TestClient(make_app())


def test_the_page_loads_the_extensions_files_as_a_webui_would(client):
    page = client.get("/").text
    head = page[: page.index("</head>")]
    scripts = re.findall(r'<script src="([^"]+)"></script>', head)
    assert scripts[0] == "lab-static/lab.js"
    assert scripts[1:] == sorted(scripts[1:])
    assert "extension/javascript/vram_guard.js" in scripts
    for address in [*scripts, "extension/style.css", "lab-static/lab.css"]:
        assert client.get(f"/{address}").status_code == 200


def test_the_page_fetches_nothing_from_another_machine(client):
    page = client.get("/").text
    assert re.findall(r'(?:src|href)="(?:https?:)?//[^"]*"', page) == []
    theme = client.get("/theme.css").text
    assert "fonts.googleapis" not in theme


def test_the_routes_of_the_extension_answer_in_the_lab(client):
    status = client.get("/vram-guard/v1/status").json()
    assert (status["host"], status["card"]["source"], status["mode"]) == ("a1111", "virtual", "ask")
    body = {"tab": "txt2img", "form": {"width": 512, "height": 512, "checkpoint": "v1-5-pruned-emaonly.safetensors"}}
    assert client.post("/vram-guard/v1/check", json=body).json()["verdict"] == "fits"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_lab_has_its_labels_in_every_language(language):
    page = TestClient(make_app(language)).get("/").text
    assert json.dumps(sentence("lab.others", language))[1:-1] in page


def test_the_lab_is_for_this_machine_alone():
    assert ADDRESS == "127.0.0.1"


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_a_port_that_is_none_is_refused_in_words(port, capsys):
    with pytest.raises(SystemExit) as end:
        main([f"--port={port}"])
    assert end.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_a_drawn_picture_has_its_size_and_depends_on_its_seed_alone():
    assert draw(64, 128, 3).size == (64, 128)
    assert draw(64, 64, 3).tobytes() == draw(64, 64, 3).tobytes()
    assert draw(64, 64, 3).tobytes() != draw(64, 64, 4).tobytes()
    assert socket.inet_aton(ADDRESS)
