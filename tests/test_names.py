"""The names under which the project is found: one import package, none of anybody else's."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import nightshift.former_names
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.former_names import PACKAGES, former_names, moved, removed

ROOT = Path(__file__).resolve().parent.parent


def test_the_example_of_former_names_runs() -> None:
    found = doctest.testmod(nightshift.former_names)
    assert found.attempted
    assert not found.failed


def test_a_pickle_of_a_former_name_loads_as_the_class_of_today() -> None:
    saved = pickle.dumps(Subject(SubjectKind.NODE, "n1"), protocol=0).replace(b"nightshift.", b"")
    assert b"nightshift" not in saved
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(saved)
    with former_names():
        assert pickle.loads(saved) == Subject(SubjectKind.NODE, "n1")
    assert nightshift.collectors.subject.__spec__.name == "nightshift.collectors.subject"


def test_a_former_package_that_is_one_module_today_still_has_its_submodules() -> None:
    with former_names():
        import kernels.generate.families.rows_cuda
        from kernels.problems import named, softmax

        assert softmax.SOFTMAX is named("softmax")
        assert kernels.generate.families.rows_cuda.__name__ == "nightshift.kernels.ops.rows.bulk_cuda_family"


def test_every_former_name_leads_to_a_module_of_today() -> None:
    missing = [today for today in moved().values() if importlib.util.find_spec(f"nightshift.{today}") is None]
    assert missing == []


def test_a_pickle_of_a_removed_module_is_refused_in_a_sentence() -> None:
    assert removed().isdisjoint(moved())
    for name in removed():
        with former_names(), pytest.raises(ModuleNotFoundError, match=f"{name} was removed"):
            pickle.loads(f"c{name}\nDensity\n.".encode())


def test_other_packages_of_these_names_are_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("kernels")
    monkeypatch.setitem(sys.modules, "kernels", theirs)
    with former_names():
        import kernels.ledger

        assert kernels.ledger.__name__ == "nightshift.kernels.loop.ledger"
    assert sys.modules["kernels"] is theirs
    assert "kernels.ledger" not in sys.modules


def test_no_former_name_is_importable_by_itself() -> None:
    # another distribution may have one of the names: Hugging Face's `kernels`
    ours = "(s := u.find_spec(n)) and not any(n in f for f in m.packages_distributions().get(n, ()))"
    code = "import importlib.metadata as m, importlib.util as u, json; "
    code += f"print(json.dumps([n for n in {PACKAGES!r} if {ours}]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_nightshift_comes_from_this_tree_and_one_distribution() -> None:
    code = (
        "import json, importlib.metadata as m, nightshift\n"
        "print(json.dumps([nightshift.__file__, sorted(set(m.packages_distributions().get('nightshift', ())))]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    file, owners = json.loads(done.stdout)
    assert file == str(ROOT / "nightshift/__init__.py")
    assert set(owners) <= {"nightshift-oncall"}


_IMPORT_ALL = """
import importlib, json, pkgutil, kernels, transformers, nightshift
failed = {}
for found in pkgutil.walk_packages(nightshift.__path__, "nightshift."):
    if found.name.endswith("__main__") or ".migrations." in found.name or ".apply.job." in found.name:
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        failed[found.name] = str(error)
print(json.dumps([kernels.__file__, hasattr(kernels, "get_kernel"), nightshift.__file__, failed]))
"""


@pytest.mark.full
def test_the_wheel_lives_beside_hugging_faces_kernels_and_transformers(tmp_path: Path) -> None:
    """All of our modules import in one process with theirs, and theirs is still theirs."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    source = tmp_path / "source"  # not the checkout: an older build/ in it would add modules that are gone
    shutil.copytree(ROOT / "nightshift", source / "nightshift", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, source)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path / "wheels"), str(source)], check=True)
    (wheel,) = (tmp_path / "wheels").glob("nightshift_oncall-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    # torch and numpy are this environment's: without --no-deps pip would fetch both again
    theirs = ["kernels", "transformers", "huggingface_hub", "tokenizers", "safetensors", "regex", "tqdm", "hf-xet"]
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), *theirs], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    where, is_theirs, ours, failed = json.loads(done.stdout.splitlines()[-1])
    assert where.startswith(str(site))
    assert is_theirs
    assert ours.startswith(str(site))
    assert failed == {}
