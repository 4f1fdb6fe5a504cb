"""Run what a Containerfile says, over a copy of this machine's files in place of its base.

    unshare --mount --pid --fork --mount-proc python container.py CONTEXT MODEL WORK NAME=VALUE...

Each stage is a layer over ``/``, which stays as it is. The server then runs as engines run it: as
the file's user without capabilities, its files read-only but for the volume, in a network of its
own. What it did is printed as JSON. Further words are build arguments.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MODEL, KEY = "/model.gguf", "a-key"
ASK = """
import json, sys, urllib.error, urllib.request
body = {"prompt": "Hi", "max_tokens": 12, "temperature": 0}
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {sys.argv[1]}"}
url = "http://127.0.0.1:8000/v1/completions"
try:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as got:
        print(json.dumps([got.status, json.load(got)["choices"][0]["text"]]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, ""]))
"""
LOOPBACK = (
    "import fcntl, socket, struct;"
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0x41))"  # up and running
)


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction of a Containerfile and what follows it."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in pairs]


@dataclass
class Stage:
    """A stage of the file: where its files are, and its settings."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": SEARCHED})
    folder: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def run(self, *words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start a program as the stage's user, without any right of root's if it is another."""
        user, group = self.user.split(":")
        given = [f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        less = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        chroot = ["chroot", str(self.root)]
        as_user = ["setpriv", *given, *(less if user != "0" else ()), *words]
        told = {**self.env, **(env or {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*chroot, *as_user], env=told, text=True, **pipes)


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def layer(work: Path, name: str) -> Path:
    """A layer over this machine's files."""
    root, upper, scratch = (work / name / part for part in ("root", "upper", "scratch"))
    for path in (root, upper, scratch):
        path.mkdir(parents=True)
    folders = f"lowerdir=/,upperdir={upper},workdir={scratch}"
    mount("-t", "overlay", "-o", folders, "overlay", root)
    mount("--rbind", "/dev", root / "dev")
    mount("-t", "proc", "proc", root / "proc")
    return root


class Build:
    """Carries out instructions; one that is not known here is a KeyError."""

    def __init__(self, context: Path, work: Path, given: dict[str, str]) -> None:
        self.context, self.work, self.given = context, work, given
        self.arguments = dict[str, str]()
        self.stages = dict[str, Stage]()
        rules = (context / ".dockerignore").read_text().split()
        self.left_out = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
        self.let_in = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
        assert rules[0] == "*"

    @property
    def stage(self) -> Stage:
        return list(self.stages.values())[-1]

    def all(self, text: str) -> Stage:
        for word, rest in instructions(text):
            {
                "ARG": self.argument,
                "FROM": self.begin,
                "RUN": self.run,
                "COPY": self.copy,
                "ENV": self.set_variables,
                "WORKDIR": lambda rest: setattr(self.stage, "folder", rest),
                "USER": lambda rest: setattr(self.stage, "user", rest),
                "VOLUME": lambda rest: self.stage.volumes.append(rest),
                "EXPOSE": lambda rest: None,
                "HEALTHCHECK": lambda rest: setattr(
                    self.stage, "health", json.loads(rest.partition("CMD ")[2])
                ),
                "ENTRYPOINT": lambda rest: setattr(self.stage, "entry", json.loads(rest)),
                "CMD": lambda rest: setattr(self.stage, "command", json.loads(rest)),
            }[word](rest)
        return self.stage

    def argument(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self.arguments.setdefault(name, self.given.get(name, default))

    def begin(self, rest: str) -> None:
        name = rest.partition(" AS ")[2] or "last"
        self.stages[name] = Stage(layer(self.work, name))

    def run(self, rest: str) -> None:
        root = str(self.stage.root)
        script = f"cd {self.stage.folder} && {rest}"
        told = {**os.environ, **self.arguments, **self.stage.env}
        subprocess.run(["chroot", root, "sh", "-c", script], check=True, env=told, stdout=2)

    def copy(self, rest: str) -> None:
        *sources, target = rest.split()
        origin = self.context
        if sources[0].startswith("--from="):
            origin = self.stages[sources.pop(0).removeprefix("--from=")].root
        elif not all(each in self.let_in for each in sources):
            raise ValueError(f".dockerignore lets in {self.let_in}, not {sources}")
        for source in sources:
            found, to = origin / source.lstrip("/"), self.stage.root / target.lstrip("/")
            if found.is_dir():
                ignored = shutil.ignore_patterns(*self.left_out) if origin == self.context else None
                shutil.copytree(found, to, symlinks=True, ignore=ignored)
            else:
                to = to / found.name if target.endswith("/") else to
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, to)

    def set_variables(self, rest: str) -> None:
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            self.stage.env[name] = value.replace("$PATH", self.stage.env["PATH"])


def prepare(stage: Stage, model: Path) -> None:
    """Mount the model and the volumes; nothing else can be written."""
    (stage.root / MODEL.lstrip("/")).touch()
    mount("--bind", model, stage.root / MODEL.lstrip("/"))
    mount("-o", "remount,bind,ro", stage.root / MODEL.lstrip("/"))
    for volume in stage.volumes:
        place = stage.root / volume.lstrip("/")
        owner = place.stat()  # as engines make a new volume
        mount("-t", "tmpfs", "-o", f"uid={owner.st_uid},gid={owner.st_gid},mode=755", "t", place)
    mount("-o", "remount,bind,ro", stage.root)


def served(stage: Stage) -> dict[str, Any]:
    """Answers of the server, asked from beside it, and how it ended."""
    subprocess.run([sys.executable, "-c", LOOPBACK], check=True)
    begin = [*stage.entry, *stage.command]
    keyless = stage.run(*begin)
    told: dict[str, Any] = {"keyless": [keyless.communicate(timeout=60)[1], keyless.returncode]}
    server = stage.run(*begin, env={"DRAFTWOOD_API_KEY": KEY})
    for _ in range(100):
        health = stage.run(*stage.health)
        health.communicate()
        if health.returncode == 0 or server.poll() is not None:
            break
        time.sleep(0.5)
    told["healthy"] = health.returncode == 0
    for name, key in (("answer", KEY), ("stranger", "another")):
        asked = stage.run("python3", "-c", ASK, key)
        told[name] = json.loads(asked.communicate()[0] or "null")
    for name, path in (("root", "/file"), ("model", MODEL), ("temporary", "/tmp/file")):
        told[name] = stage.run("touch", path).wait()
    told["user"] = re.findall(
        r"^(?:Uid|CapEff|CapBnd|NoNewPrivs):.*",
        Path(f"/proc/{server.pid}/status").read_text(),
        re.M,
    )
    server.terminate()
    told["said"], told["exit"] = server.communicate(timeout=60)[1], server.returncode
    return told


def main(context: str, model: str, work: str, *given: str) -> None:
    if work == "serve":
        stage = Stage(**json.loads(os.environ["STAGE"]) | {"root": Path(context)})
        print(json.dumps(served(stage)))
        return
    mount("-t", "tmpfs", "-o", "size=4g", "tmpfs", work)
    text = Path(context, "Containerfile").read_text(encoding="utf-8")
    build = Build(Path(context), Path(work), dict(each.split("=", 1) for each in given))
    stage = build.all(text)
    prepare(stage, Path(model))
    # a network of its own, from here on
    settings = {name: value for name, value in vars(stage).items() if name != "root"}
    command = [sys.executable, __file__, str(stage.root), model, "serve"]
    alone = ["unshare", "--net", *command]
    subprocess.run(alone, check=True, env={**os.environ, "STAGE": json.dumps(settings)})


if __name__ == "__main__":
    main(*sys.argv[1:])
