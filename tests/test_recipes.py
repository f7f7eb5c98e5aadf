"""The deployment recipes: run for real where a command can stand in for a cluster, else checked."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import psutil
import pytest
import yaml
from distributed import Client
from distributed.security import Security

from dagsel.cli.commands import command as dagsel_command

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "cluster" / "recipes"
COMPOSE = RECIPES / "docker-compose"
KUBERNETES = RECIPES / "kubernetes"
PAGES = sorted((ROOT / "docs" / "deploy").glob("*.md"))
SCRIPTS = [
    path
    for path in sorted(RECIPES.rglob("*"))
    if path.is_file() and re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes())
]

LIMIT = 100  # seconds: only met when something hangs
TABLE = ROOT / "examples" / "data" / "diabetes.csv"
JOB = [*f"select {TABLE} --target progression --drop id --k 5".split(), "--scoring"]
JOB += ["neg_mean_squared_error", "--cv", "5"]
# The same five as refits by mlxtend keep.
SELECTED = ["sex", "bmi", "bp", "s1", "s5"]

SRUN = """\
n_tasks=1
while [[ $1 == -* ]]; do
    case $1 in
    --ntasks=*) n_tasks=${1#*=} ;;
    --output=*) output=${1#*=} ;;
    esac
    shift
done
trap 'kill $(jobs -p)' TERM
for ((task = 0; task < n_tasks; task++)); do "$@" &>"${output/\\%t/$task}" & done
wait
wait
"""
# Runs the command here, like a host whose shell gets it as text.
SSH = """\
while [[ $1 == -* ]]; do shift 2; done
host=$1
shift
case $host in
nowhere) echo "ssh: no route to nowhere" >&2 && exit 255 ;;
slow) exec cat ;;
esac
exec sh -c "$*"
"""
SBATCH = """\
# The file is removed when this returns.
cp "${@: -1}" job.sh
setsid bash job.sh </dev/null &>"job.log" &
echo "Submitted batch job $!"
"""
SCANCEL = 'kill -- "-$1" || true\n'
# What `dask cuda worker` does on a machine with two GPUs, as far as the script can tell.
CUDA_WORKER = """\
if [[ $1 == cuda ]]; then
    shift 2
    exec "{python}" -m dask worker --nworkers 2 "$@"
fi
exec "{python}" -m dask "$@"
"""


def _heed_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@dataclass
class Workplace:
    """A folder, with commands that stand in for those of a cluster."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def command(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)

    def start(self, *arguments: object, **settings: str) -> subprocess.Popen[str]:
        places = [str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = {
            name: value
            for name, value in os.environ.items()
            # Of a real job around these tests, or of the user.
            if not name.startswith(("SLURM_", "DAGSEL_", "DASK_"))
        }
        environment |= {"PATH": os.pathsep.join(places), "RECIPE_TEST": self.mark}
        return subprocess.Popen(
            list(map(str, arguments)),
            cwd=self.folder,
            env=environment | self.settings | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # `restore_signals` and so on are as in a terminal; Ctrl-C there is not for these.
            start_new_session=True,
            # Tests that are run by nohup would pass on that SIGHUP is ignored.
            preexec_fn=_heed_hangups,
        )

    def run(self, *arguments: object, **settings: str) -> tuple[int, str]:
        process = self.start(*arguments, **settings)
        output, _ = process.communicate(timeout=LIMIT)
        return process.returncode, output

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("RECIPE_TEST") == self.mark
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left_in_the_end(self, seconds: float = 20) -> list[list[str]]:
        """Return the commands of all processes that do not end by themselves."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [process.cmdline() for process in left]


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    place = Workplace(tmp_path)
    yield place
    for process in place.left():
        with contextlib.suppress(psutil.Error):
            process.kill()


def selected(folder: Path) -> list[str]:
    return (folder / "selected.txt").read_text().split()


def long_job(folder: Path) -> list[str]:
    """Return the arguments of a run of a minute or so, with a round decided every second."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((2000, 40))).add_prefix("x")
    table.assign(y=table.sum(axis=1)).to_csv(folder / "long.csv", index=False)
    return ["select", "long.csv", "--target", "y", "--k", "1", "--engine", "refit", "-o", "out"]


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process prints until there is a line with the text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(text, line):
            break
    else:
        pytest.fail("".join(lines))
    return "".join(lines)


# --- All scripts


def test_scripts_pass_shellcheck(workplace):
    assert {path.name for path in SCRIPTS} == {"dagsel.sbatch", "dagsel-ssh.sh"}
    assert all(os.access(path, os.X_OK) for path in SCRIPTS)
    code, output = workplace.run("shellcheck", "--severity=style", *SCRIPTS)
    assert code == 0, output
    wrong = workplace.folder / "wrong.sh"
    wrong.write_text("#!/bin/bash\nrm -rf $1\n")
    assert workplace.run("shellcheck", wrong)[0] == 1


# --- SLURM


@pytest.fixture
def slurm(workplace: Workplace) -> Workplace:
    workplace.command("srun", SRUN)
    workplace.settings = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPUS_PER_TASK": "3",
        "SLURM_CPUS_ON_NODE": "3",
        "SLURM_MEM_PER_CPU": "500",
        "DAGSEL_INTERFACE": "lo",
    }
    return workplace


def sbatch_script() -> Path:
    return RECIPES / "slurm" / "dagsel.sbatch"


@pytest.mark.slow
def test_sbatch_selects_with_a_worker_for_every_task(slurm):
    code, output = slurm.run(sbatch_script(), *JOB, "-o", "out", DAGSEL_LOGS="logs")
    assert code == 0, output
    assert selected(slurm.folder / "out") == SELECTED
    assert "on 2 workers" in output
    logs = {path.name: path.read_text() for path in (slurm.folder / "logs").iterdir()}
    assert {"worker-0.log", "worker-1.log", "scheduler.log"} <= logs.keys()
    # 500 MiB for each of three cores; and the interface that was asked for.
    assert "1.46 GiB" in logs["worker-0.log"]
    assert "tcp://127.0.0.1:" in logs["scheduler.log"]
    assert slurm.left_in_the_end() == []


@pytest.mark.slow
def test_sbatch_on_gpus_keeps_what_was_decided_when_the_time_is_up(slurm):
    slurm.command("dask", CUDA_WORKER.format(python=sys.executable))
    gpus = {"SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2"}
    process = slurm.start(sbatch_script(), *long_job(slurm.folder), **gpus)
    output = wait_for(process, "round [1-9]")
    # To the script alone, as `--signal=B:TERM@180` does.
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, output + rest
    assert "on 2 workers" in output
    record = json.loads((slurm.folder / "out" / "selection.json").read_text())
    assert record["complete"] is False
    assert len(record["rounds"]) > 1
    assert slurm.left_in_the_end() == []


@pytest.mark.slow
def test_sbatch_ends_when_a_worker_does_not_come_up(slurm):
    slurm.command("srun", "exec sleep 1000\n")
    assert_ends_soon(slurm, "2 workers were not there within 3 s", DAGSEL_WAIT="3")


def assert_ends_soon(slurm: Workplace, says: str, **settings: str) -> None:
    """Run the job, which says what is wrong, does not wait for long, and leaves nothing."""
    began = time.monotonic()
    code, output = slurm.run(sbatch_script(), *JOB, **settings)
    assert code == 1
    assert says in output
    assert time.monotonic() - began < 40
    assert slurm.left_in_the_end() == []


def test_sbatch_says_what_is_wrong(slurm):
    assert slurm.run(sbatch_script())[0] == 2
    code, output = slurm.run(sbatch_script(), *JOB, SLURM_GPUS_ON_NODE="2", SLURM_NTASKS="4")
    assert code == 2
    assert "--ntasks-per-node=1" in output
    slurm.command("srun", "exit 3\n")
    assert_ends_soon(slurm, "ended before dagsel began", DAGSEL_WAIT="60")


def test_sbatch_asks_for_an_early_signal():
    given = re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", sbatch_script().read_text(), re.MULTILINE)
    options = dict(given)
    assert re.fullmatch(r"B:TERM@\d+", options["signal"])
    # More than the 30 s that a connection may take to close.
    assert int(options["signal"].partition("@")[2]) > 60


@pytest.mark.slow
def test_jobqueue_runs_on_jobs_and_cancels_them(workplace):
    workplace.command("sbatch", SBATCH)
    workplace.command("scancel", SCANCEL)
    jobqueue = [sys.executable, RECIPES / "slurm" / "jobqueue.py", "--interface", "lo"]
    options = ["--jobs", "1", "--memory", "1GB", "--logs", "logs", "--wait", "90", "--"]
    code, output = workplace.run(*jobqueue, *options, *JOB, "-o", "out")
    assert code == 0, output
    assert selected(workplace.folder / "out") == SELECTED
    assert workplace.left_in_the_end() == []


def test_jobqueue_shows_a_job_with_gpus(workplace):
    jobqueue = [sys.executable, RECIPES / "slurm" / "jobqueue.py", "--interface", "lo"]
    size = ["--gpus", "2", "--cores", "8", "--memory", "64GB"]
    site = ["--queue", "gpu", "--account", "me"]
    code, output = workplace.run(*jobqueue, "--dry-run", *size, *site)
    assert code == 0, output
    for line in ("-p gpu", "-A me", "--cpus-per-task=8", "--gres=gpu:2"):
        assert f"#SBATCH {line}\n" in output
    assert re.search(r"dask cuda worker tcp://\S+ .*--nthreads 1 --memory-limit 29.8\dGiB", output)
    assert "'OMP_NUM_THREADS': 4" in output


# --- ssh and TLS


@pytest.fixture
def ssh(workplace: Workplace) -> Workplace:
    workplace.command("ssh", SSH)
    workplace.settings = {
        "DAGSEL_ADDRESS": "127.0.0.1",
        "DAGSEL_WAIT": "60",
        "DAGSEL_ENV": str(Path(sys.executable).parents[1]),
    }
    return workplace


def certificates(folder: Path, *options: str) -> Path:
    script = RECIPES / "tls" / "make_certificates.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), *options],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def ssh_command(place: Workplace, *hosts: str) -> list[object]:
    (place.folder / "hosts.txt").write_text("# machines\n" + "".join(f"{name}\n" for name in hosts))
    return [RECIPES / "ssh" / "dagsel-ssh.sh", "hosts.txt"]


@pytest.mark.slow
def test_ssh_selects_on_every_host_encrypted(ssh):
    tls = certificates(ssh.folder / "tls")
    command = ssh_command(ssh, "one", "me@two")
    code, output = ssh.run(*command, *JOB, "-o", "out", DASK_CONFIG=str(tls / "dask.yaml"))
    assert code == 0, output
    assert selected(ssh.folder / "out") == SELECTED
    assert "connecting to tls://127.0.0.1:" in output
    assert "on 2 workers" in output
    logs = ssh.folder / "dagsel-ssh-logs"
    assert "Registered to: tls://" in re.sub(" +", " ", (logs / "worker-1.log").read_text())
    assert ssh.left_in_the_end() == []


@pytest.mark.slow
def test_ssh_names_the_host_that_fails(ssh):
    code, output = ssh.run(*ssh_command(ssh, "slow", "nowhere"), *JOB)
    assert code == 1
    assert "the worker on nowhere has ended: ssh: no route to nowhere" in output
    assert ssh.left_in_the_end() == []
    for name in ("empty.txt", "missing.txt"):
        (ssh.folder / "empty.txt").write_text("# nobody\n")
        code, output = ssh.run(RECIPES / "ssh" / "dagsel-ssh.sh", name, *JOB)
        assert code == 2
        assert "list of hosts" in output


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_ssh_leaves_nothing_behind_when_it_is_killed(ssh, signum):
    # While it waits for a worker that never comes.
    process = ssh.start(*ssh_command(ssh, "one", "slow"), *JOB)
    log = ssh.folder / "dagsel-ssh-logs" / "worker-0.log"
    deadline = time.monotonic() + LIMIT
    while not (log.exists() and "Start Nanny" in log.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signum)
    process.communicate(timeout=LIMIT)
    assert process.returncode == (143 if signum == signal.SIGTERM else -signum)
    assert ssh.left_in_the_end() == []


def test_certificates_are_private_and_each_for_its_role(tmp_path):
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    folder = certificates(tmp_path / "tls", "--days", "3", "--installed-in", "/etc/dagsel")
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    for role, uses in (("scheduler", 2), ("worker", 2), ("client", 1)):
        mode = (folder / f"{role}-key.pem").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        made = x509.load_pem_x509_certificate((folder / f"{role}.pem").read_bytes())
        made.verify_directly_issued_by(authority)
        assert 3 <= (made.not_valid_after_utc - made.not_valid_before_utc).days <= 4
        usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert len(usage) == uses
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) == (role != "client")
    tls = yaml.safe_load((folder / "dask.yaml").read_text())["distributed"]["comm"]["tls"]
    assert tls["worker"]["key"] == "/etc/dagsel/worker-key.pem"
    # It would replace certificates that are in use.
    again = [sys.executable, str(RECIPES / "tls" / "make_certificates.py"), str(folder)]
    done = subprocess.run(again, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert "File exists" in done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_scheduler_with_certificates_turns_others_away(workplace):
    tls = certificates(workplace.folder / "tls")
    port = free_port()
    dask = [sys.executable, "-m", "dask"]
    options = f"scheduler --host 127.0.0.1 --port {port} --no-dashboard".split()
    scheduler = workplace.start(*dask, *options, DASK_CONFIG=str(tls / "dask.yaml"))
    wait_for(scheduler, "Scheduler at: +tls://")
    where = f"tls://127.0.0.1:{port}"
    with Client(where, security=security(tls), timeout=LIMIT, set_as_default=False) as client:
        assert client.scheduler_info()["workers"] == {}
    # Certificates of another authority, and none at all.
    stranger = {"DASK_CONFIG": str(certificates(workplace.folder / "other") / "dask.yaml")}
    dagsel = [sys.executable, "-m", "dagsel.cli", *JOB, "--timeout", "1", "--scheduler", where]
    for settings in (stranger, {}):
        code, output = workplace.run(*dagsel, **settings)
        assert code == 2
        assert f"no Dask scheduler answers at {where}" in output
    scheduler.terminate()
    scheduler.communicate(timeout=LIMIT)


def security(folder: Path) -> Security:
    return Security(
        require_encryption=True,
        tls_ca_file=str(folder / "ca.pem"),
        tls_client_cert=str(folder / "client.pem"),
        tls_client_key=str(folder / "client-key.pem"),
    )


# --- Docker Compose


def merged(base: Any, override: Any) -> Any:
    """Merge as Compose does for what these files have: mappings deeply, commands not at all."""
    if not (isinstance(base, dict) and isinstance(override, dict)):
        return copy.deepcopy(override)
    result = copy.deepcopy(base)
    for key, value in override.items():
        result[key] = merged(base[key], value) if key in base else copy.deepcopy(value)
    return result


def interpolated(value: Any, settings: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: interpolated(each, settings) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, settings) for each in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: settings.get(m[1]) or m[2], value)
    assert "$" not in text
    return text


def compose(*names: str, **settings: str) -> dict[str, Any]:
    """Return the services of compose files, merged and with the variables' values."""
    whole: dict[str, Any] = {}
    for name in names:
        whole = merged(whole, yaml.safe_load((COMPOSE / name).read_text()))
    services: dict[str, Any] = interpolated(whole["services"], settings)
    for service in services.values():
        if isinstance(service["command"], str):
            service["command"] = shlex.split(service["command"])
    return services


def check_compose(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_compose_files_follow_the_specification(tmp_path):
    for name in ("compose.yaml", "compose.gpu.yaml"):
        done = check_compose(COMPOSE / name)
        assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((COMPOSE / "compose.yaml").read_text().replace("healthcheck:", "health:"))
    assert check_compose(wrong).returncode == 1


def test_compose_services_fit_together():
    cpu = compose("compose.yaml", WORKERS="3", WORKER_MEMORY="5g")
    gpu = compose("compose.yaml", "compose.gpu.yaml", GPUS="2", CUDA="12")
    for services, tag, arguments in (
        (cpu, "dagsel:cpu", {"PYTHON": "3.12"}),
        (gpu, "dagsel:cuda12", {"PYTHON": "3.12", "CUDA": "12"}),
    ):
        assert services.keys() == {"scheduler", "worker", "dagsel"}
        for service in services.values():
            assert service["image"] == tag
            assert service["build"]["args"] == arguments
            context = (COMPOSE / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        assert services["dagsel"]["depends_on"] == {"worker": {"condition": "service_healthy"}}
        mounts = {mount["target"]: mount for mount in services["dagsel"]["volumes"]}
        assert services["worker"]["volumes"] == [mounts["/data"]]
        assert (COMPOSE / mounts["/data"]["source"] / TABLE.name).samefile(TABLE)
    assert cpu["worker"]["deploy"] == {
        "replicas": "3",
        "resources": {"limits": {"memory": "5g"}},
    }
    assert gpu["worker"]["deploy"]["replicas"] == 1
    assert gpu["worker"]["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": "2", "capabilities": ["gpu"]}
    ]
    assert gpu["worker"]["command"][:3] == ["dask", "cuda", "worker"]


def test_compose_variables_are_explained():
    page = (ROOT / "docs" / "deploy" / "docker-compose.md").read_text()
    used: set[str] = set()
    for name in ("compose.yaml", "compose.gpu.yaml"):
        text = (COMPOSE / name).read_text()
        mine = set(re.findall(r"\$\{(\w+)", text))
        explained = set(re.findall(r"^#   ([A-Z_]+) {2,}", text, re.MULTILINE))
        assert mine - used == explained - used
        used |= mine
    assert used == set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE))


@pytest.mark.slow
def test_compose_commands_run(workplace):
    # The paths and names of the containers become those of this machine.
    ports = {name: free_port() for name in ("scheduler", "dashboard", "worker")}
    places = {"/data/": f"{TABLE.parent}/", "/results": str(workplace.folder / "out")}
    places |= {"tcp://scheduler:8786": f"tcp://127.0.0.1:{ports['scheduler']}"}
    services = compose("compose.yaml")

    def here(words: list[str], http: int) -> list[str]:
        for old, new in (places | {":8787": f":{http}"}).items():
            words = [word.replace(old, new) for word in words]
        words = [str(ports["scheduler"]) if word == "8786" else word for word in words]
        return [sys.executable, "-m", *words] if words[0] == "dask" else words

    def healthy(name: str, http: int) -> None:
        _, *check = services[name]["healthcheck"]["test"]
        deadline = time.monotonic() + LIMIT
        while workplace.run(*here(check, http))[0] != 0:
            assert processes[name].poll() is None, processes[name].communicate()
            assert time.monotonic() < deadline, name

    processes = {}
    for name, http in (("scheduler", ports["dashboard"]), ("worker", ports["worker"])):
        processes[name] = workplace.start(*here(services[name]["command"], http))
        healthy(name, http)
    waiting = pod_containers(kustomized("cpu")["DaskJob"])["wait"]
    scheduler = places["tcp://scheduler:8786"]
    # The container of the job on Kubernetes that waits: it needs a cluster, and here is one.
    assert workplace.run(*waiting["args"], SCHEDULER=scheduler, WORKERS="1") == (0, "")
    code, output = workplace.run(*here(services["dagsel"]["command"], 0))
    assert code == 0, output
    assert selected(workplace.folder / "out") == SELECTED
    for process in reversed(processes.values()):
        process.terminate()
        process.communicate(timeout=LIMIT)


def test_image_holds_what_it_needs_and_no_more():
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if re.match("[A-Z]+ ", line)]
    names = [name for name, _ in instructions]
    assert names[:2] == ["ARG", "FROM"]
    assert names.count("RUN") == 1
    # Not root, and after the last thing that must be.
    assert names.index("USER") > names.index("RUN")
    assert ["USER", "1000:1000"] in instructions
    ignored = (COMPOSE / "Dockerfile.dockerignore").read_text().split()
    for name, rest in instructions:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    extras = importlib.metadata.metadata("dagsel").get_all("Provides-Extra") or []
    page = (COMPOSE / "compose.gpu.yaml").read_text()
    for release in re.findall(r"\d\d", page[page.index("CUDA  ") :].splitlines()[0]):
        assert f"cuda{release}" in extras


# --- Kubernetes


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def kustomized(variant: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of a variant by kind, as `kubectl kustomize` would print them."""
    folder = KUBERNETES / variant
    (given,) = documents(folder / "kustomization.yaml")
    found: dict[str, dict[str, Any]] = {}
    for resource in given["resources"]:
        path = folder / resource
        if path.is_dir():
            found |= kustomized(str(path.resolve().relative_to(KUBERNETES)))
        else:
            found |= {one["kind"]: one for one in documents(path)}
    for patch in given.get("patches", []):
        for step in yaml.safe_load(patch["patch"]):
            assert step["op"] == "replace"
            *way, last = step["path"].strip("/").split("/")
            place: Any = found[patch["target"]["kind"]]
            for key in way:
                place = place[int(key)] if isinstance(place, list) else place[key]
            assert last in place
            place[last] = step["value"]
    for image in given.get("images", []):
        for manifest in found.values():
            for container in pod_containers(manifest).values():
                assert container["image"].startswith(f"{image['name']}:")
                container["image"] = f"{image['name']}:{image['newTag']}"
    return found


def pods(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the specifications of pods in a manifest, by their role."""
    spec = manifest["spec"]
    if manifest["kind"] == "Pod":
        return {"files": spec}
    if manifest["kind"] == "DaskCluster":
        return {role: spec[role]["spec"] for role in ("worker", "scheduler")}
    if manifest["kind"] == "DaskJob":
        cluster = {"kind": "DaskCluster", "spec": spec["cluster"]["spec"]}
        return {"job": spec["job"]["spec"], **pods(cluster)}
    return {}


def pod_containers(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        container["name"]: container
        for pod in pods(manifest).values()
        for container in [*pod.get("initContainers", []), *pod["containers"]]
    }


def all_manifests() -> dict[str, dict[str, dict[str, Any]]]:
    cluster = {one["kind"]: one for one in documents(KUBERNETES / "cluster.yaml")}
    storage = {one["kind"]: one for one in documents(KUBERNETES / "cpu" / "storage.yaml")}
    return {"cpu": kustomized("cpu"), "gpu": kustomized("gpu"), "cluster": cluster | storage}


@pytest.mark.parametrize("variant", ["cpu", "gpu", "cluster"])
def test_kubernetes_manifests_fit_together(variant):
    manifests = all_manifests()[variant]
    versions = {"PersistentVolumeClaim": "v1", "Pod": "v1"}
    images = set()
    for kind, manifest in manifests.items():
        assert manifest["apiVersion"] == versions.get(kind, "kubernetes.dask.org/v1")
        for pod in pods(manifest).values():
            volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
            for volume in volumes.values():
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == manifests["PersistentVolumeClaim"]["metadata"]["name"]
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                images.add(container["image"])
                assert all(isinstance(word, str) for word in container["args"])
                assert "command" not in container
                assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(
                    volumes
                )
                assert container["resources"].keys() == {"requests", "limits"}
            if volumes:
                assert pod["securityContext"]["runAsUser"] == 1000
    assert images == {"dagsel:cuda13" if variant == "gpu" else "dagsel:cpu"}


@pytest.mark.parametrize("variant", ["cpu", "gpu", "cluster"])
def test_kubernetes_workers_get_what_they_ask_for(variant):
    from dask.utils import parse_bytes

    manifests = all_manifests()[variant]
    (manifest,) = (one for kind, one in manifests.items() if kind.startswith("Dask"))
    name = manifest["metadata"]["name"]
    containers = pod_containers(manifest)
    worker = containers["worker"]
    resources = worker["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"].get("nvidia.com/gpu") == ("1" if variant == "gpu" else None)
    (limit,) = (word for word in worker["args"] if word.startswith("--memory-limit="))
    granted = parse_bytes(resources["limits"]["memory"].replace("Gi", "GiB"))
    assert 0.9 * granted < parse_bytes(limit.partition("=")[2]) < granted
    spec = manifest["spec"]["cluster"]["spec"] if variant != "cluster" else manifest["spec"]
    service = spec["scheduler"]["service"]
    assert service["selector"]["dask.org/cluster-name"] == name
    offered = {port["name"]: port["containerPort"] for port in containers["scheduler"]["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == offered
    assert {"--port=8786", "--dashboard-address=:8787"} <= set(containers["scheduler"]["args"])
    if variant != "cluster":
        settings = {entry["name"]: entry["value"] for entry in containers["wait"]["env"]}
        assert settings["WORKERS"] == str(spec["worker"]["replicas"])
        # As the operator names the service.
        assert settings["SCHEDULER"] == f"tcp://{name}-scheduler:8786"
        assert f"--scheduler={settings['SCHEDULER']}" in containers["job"]["args"]


def accepted(main: click.Command, words: list[str]) -> dict[str, Any]:
    """Parse arguments without running the command; fail where it would refuse them."""
    return main.make_context(main.name, list(words)).params


@pytest.mark.parametrize("variant", ["cpu", "cluster"])
def test_kubernetes_commands_are_accepted(variant):
    from distributed.cli import dask_scheduler, dask_worker

    (manifest,) = (one for one in all_manifests()[variant].values() if "Dask" in one["kind"])
    given = {name: container["args"] for name, container in pod_containers(manifest).items()}
    assert given["worker"][:2] == ["dask", "worker"]
    assert accepted(dask_worker.main, given["worker"][2:])["nthreads"] == 1
    assert given["scheduler"][:2] == ["dask", "scheduler"]
    assert accepted(dask_scheduler.main, given["scheduler"][2:])["port"] == "8786"
    if "job" in given:
        assert given["job"][:2] == ["dagsel", "select"]
        parsed = accepted(subcommand("select"), given["job"][2:])
        assert parsed["target"] == ("progression",)
        assert str(parsed["folder"]) == "/files/results"


def test_workers_on_gpus_are_accepted():
    cuda = pytest.importorskip(
        "dask_cuda.cli", reason="dask_cuda wants the Dask release that it is made for"
    )
    kubernetes = pod_containers(kustomized("gpu")["DaskJob"])["worker"]["args"]
    for words in (kubernetes, compose("compose.yaml", "compose.gpu.yaml")["worker"]["command"]):
        assert words[:3] == ["dask", "cuda", "worker"]
        assert accepted(cuda.worker, words[3:])["local_directory"] == "/tmp"
    # What the scripts give it.
    words = "tcp://x:1 --nthreads 1 --memory-limit 5MiB --no-dashboard --local-directory /tmp"
    words += " --death-timeout 9 --scheduler-file f --interface lo"
    assert accepted(cuda.worker, words.split())["scheduler_file"] == "f"


def closed(schema: Any) -> Any:
    """Return a schema that allows no unknown fields: the API server would drop them silently."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
        result.setdefault("additionalProperties", False)
    return result


def test_manifests_follow_the_operators_schema():
    jsonschema = pytest.importorskip("jsonschema")
    try:
        files = importlib.metadata.files("dask-kubernetes") or []
    except importlib.metadata.PackageNotFoundError:
        # Its dependencies, clients of Kubernetes and a framework for operators, serve nothing else
        # here, so that it is no test dependency.
        pytest.skip(
            "the schema is in dask-kubernetes, which .ci/run installs (--no-deps) beside the "
            "pinned Dask: there this test runs"
        )
    checked = 0
    for manifests in all_manifests().values():
        for kind, manifest in manifests.items():
            paths = [path for path in files if path.match(f"*crds/{kind.lower()}.yaml")]
            if paths:
                definition = yaml.safe_load(paths[0].read_text())
                schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
                spec = jsonschema.Draft202012Validator(closed(schema["properties"]["spec"]))
                errors = [error.message for error in spec.iter_errors(manifest["spec"])]
                assert errors == []
                broken = copy.deepcopy(manifest["spec"])
                pods({"kind": kind, "spec": broken})["worker"]["containers"][0]["arguments"] = []
                assert not spec.is_valid(broken)
                checked += 1
    assert checked == 3


# --- The pages


def subcommand(name: str) -> click.Command:
    assert isinstance(dagsel_command, click.Group)
    return dagsel_command.commands[name]


def shell_lines(page: Path) -> list[str]:
    """Return the commands of the page's bash blocks, each as one line."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return "\n".join(blocks).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_what_there_is(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"\bcluster/recipes[\w./-]*\b", text):
        assert (ROOT / path).exists(), path
    for line in shell_lines(page):
        where = COMPOSE if page.stem == "docker-compose" else ROOT
        for word in line.split():
            if re.fullmatch(r"(cluster|examples|compose)[\w./-]*\.\w+", word):
                assert (where / word).exists(), line


def test_pages_give_dagsel_what_it_takes():
    tried = 0
    for page in PAGES:
        for line in shell_lines(page):
            found = re.search(r"(?:^|\s)(?:SELECT='|(select|plan) )(.*?)'?$", line)
            if found and "kubectl cp" not in line:
                arguments = shlex.split(found[2])
                accepted(subcommand(found[1] or "select"), arguments)
                tried += 1
    assert tried >= 9


@pytest.mark.parametrize("name", ["slurm/jobqueue.py", "tls/make_certificates.py"])
def test_pages_and_scripts_agree_on_options(name):
    script = RECIPES / name
    help_text = subprocess.run(
        [sys.executable, str(script), "--help"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    ).stdout
    text = (ROOT / "docs" / "deploy" / f"{name.partition('/')[0]}.md").read_text()
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if script.name in line]
    options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(lines).partition(" -- ")[0])
    assert set(options) <= set(re.findall(r"--[a-z][a-z-]*", help_text))


@pytest.mark.parametrize(
    ("page", "script"), [("slurm", "slurm/dagsel.sbatch"), ("ssh", "ssh/dagsel-ssh.sh")]
)
def test_settings_of_scripts_are_explained(page, script):
    text = (RECIPES / script).read_text()
    used = set(re.findall(r"\$\{(DAGSEL_\w+)|\bDAGSEL_GPUS\b", text)) - {""}
    used |= set(re.findall(r"\bDAGSEL_GPUS\b", text))
    explained = set(re.findall(r"^#   (DAGSEL_\w+) ", text, re.MULTILINE))
    page_text = (ROOT / "docs" / "deploy" / f"{page}.md").read_text()
    assert used == explained == set(re.findall(r"^\| `(DAGSEL_\w+)` \|", page_text, re.MULTILINE))


def test_shutil_finds_the_commands_of_these_tests():
    # Or tests above would run those of another environment.
    where = Path(sys.executable).parent
    for name in ("dask", "dagsel", "shellcheck"):
        assert shutil.which(name, path=str(where)), name
