"""Run programs of examples/programs and draw the picture of each for docs/gallery.md.

    python scripts/draw_gallery.py             # all of them
    python scripts/draw_gallery.py digits vae  # some

A program's ``main`` returns what its picture shows.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS, PICTURES = ROOT / "examples" / "programs", ROOT / "docs" / "images" / "gallery"
mpl.use("Agg")
plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

DRAW: dict[str, Callable[[plt.Figure, dict[str, Any]], None]] = {}
"""How the result of each program is drawn."""


def draws(function: Callable[[plt.Figure, dict[str, Any]], None]) -> Callable[[plt.Figure, dict[str, Any]], None]:
    DRAW[function.__name__] = function
    return function


def curves(figure: plt.Figure, named: dict[str, list[float]], across: str = "call", up: str = "loss") -> Any:
    """Curves in one frame, with a legend if there are several."""
    axes = figure.subplots()
    for name, values in named.items():
        axes.plot(values, label=name, linewidth=1.2)
    axes.set(xlabel=across, ylabel=up)
    if len(named) > 1:
        axes.legend()
    return axes


def tiles(figure: plt.Figure, pictures: Any, titles: Any = None, rows: int = 2, **settings: Any) -> None:
    """Small pictures beside each other."""
    settings = {"cmap": "gray_r", **settings}
    frames = figure.subplots(rows, len(pictures) // rows).flatten()
    for index, axes in enumerate(frames):
        axes.imshow(pictures[index], **settings)
        axes.axis("off")
        if titles is not None:
            axes.set_title(titles[index], fontsize=8)


@draws
def digits(figure: plt.Figure, found: dict[str, Any]) -> None:
    tiles(figure, found["pictures"][:12, 0], [f"reads {digit}" for digit in found["read"][:12].tolist()])


@draws
def data_loading(figure: plt.Figure, found: dict[str, Any]) -> None:
    names = ("circle", "square", "cross")
    pictures = [picture[0] for picture, _ in found["pictures"]]
    tiles(figure, pictures, [names[kind] for _, kind in found["pictures"]], rows=1)


@draws
def pipelined_transformer(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = figure.subplots()
    lines = [line.partition("|")[2].split() for line in found["chart"].splitlines() if line.startswith("IPU")]
    for ipu, jobs in enumerate(lines[:4]):  # the ideal schedule comes first
        for at, job in enumerate(jobs):
            if job != ".":
                axes.barh(ipu, 0.94, left=at, color="#4c78a8" if job.endswith("F") else "#f58518")
                axes.text(at + 0.47, ipu, job, ha="center", va="center", fontsize=5, color="white")
    axes.set(yticks=range(4), yticklabels=[f"IPU {ipu}" for ipu in range(4)], xlabel="time")
    axes.invert_yaxis()


@draws
def mixed_precision(figure: plt.Figure, found: dict[str, Any]) -> None:
    curves(figure, {name: losses for name, (losses, *_) in found.items()}, "update")


@draws
def observing(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = curves(
        figure, {kind: sizes[0].tolist() for kind, (_, sizes) in found.items()}, "layer", "size of the gradient"
    )
    axes.set_yscale("log")


@draws
def bert_four_ipus(figure: plt.Figure, found: dict[str, Any]) -> None:
    words = found["words"][4:]  # three dialects of twelve words
    middle = words - words.mean(0)
    flat = middle @ torch.linalg.svd(middle).Vh[:2].T
    axes = figure.subplots()
    for dialect in range(3):
        axes.scatter(*flat[12 * dialect : 12 * dialect + 12].T, label=f"dialect {dialect + 1}", s=14)
    axes.set(xticks=[], yticks=[], title="embeddings of the words")
    axes.legend()


@draws
def vit_finetuning(figure: plt.Figure, found: dict[str, Any]) -> None:
    pictures = [picture.permute(1, 2, 0).clamp(0, 1.2) / 1.2 for picture in found["pictures"]]
    tiles(figure, pictures)
    right, naive = (f"{found[name]:.0%}" for name in ("pre-trained", "from random weights"))
    figure.suptitle(f"even or odd: {right} with pre-training, {naive} without", fontsize=9)


@draws
def gpt2_generation(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = curves(figure, {"": found["losses"]}, "step / 16")
    axes.text(0.98, 0.95, "\n".join(found["words"]), family="monospace", ha="right", va="top", transform=axes.transAxes)


@draws
def resnet_large_batch(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = curves(figure, {"": found["losses"]}, "update of 512 pictures")
    rate = axes.twinx()
    rate.plot(found["rates"], color="#f58518", linewidth=1.2)
    rate.set_ylabel("learning rate", color="#f58518")


@draws
def forecasting(figure: plt.Figure, found: dict[str, Any]) -> None:
    for axes, row in zip(figure.subplots(1, 2, sharey=True), (0, 1), strict=True):
        past, future, forecast = (found[name][row].flatten().tolist() for name in ("past", "future", "forecast"))
        axes.plot(past, color="#999")
        axes.plot(range(len(past), len(past) + len(future)), future, color="#999", linestyle=":", label="what came")
        axes.plot(range(len(past), len(past) + len(future)), forecast, color="#4c78a8", label="forecast")
        axes.legend(loc="lower left")


@draws
def graph_network(figure: plt.Figure, found: dict[str, Any]) -> None:
    import networkx

    for axes, graph in zip(figure.subplots(2, 3).flatten(), found["graphs"], strict=True):
        drawn = networkx.Graph(graph.edge_index.T.tolist())
        places = networkx.spring_layout(drawn, seed=1)
        colours = [graph.x[node].argmax().item() for node in drawn]
        networkx.draw(drawn, places, axes, node_size=24, node_color=colours, cmap="tab10", vmax=9, edge_color="#999")
        axes.set_title("a ring" if graph.y.item() else "no ring", fontsize=8)


@draws
def vae(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = figure.subplots()
    axes.imshow(torch.cat([torch.cat(list(row), 1) for row in found["drawn"]], 0), cmap="gray_r")
    axes.set(xticks=[], yticks=[], xlabel="one number", ylabel="the other")


@draws
def diffusion_unet(figure: plt.Figure, found: dict[str, Any]) -> None:
    tiles(figure, torch.cat([found["noise"][:8], found["made"][:8]])[:, 0], vmin=-1, vmax=1)
    figure.suptitle("from noise to pictures", fontsize=9)


@draws
def speech_ctc(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = figure.subplots()
    axes.imshow(found["spectrum"].T, origin="lower", aspect="auto", cmap="magma")
    axes.set(xlabel="time", ylabel="tone", title=f"“{found['word']}”")


@draws
def recommender(figure: plt.Figure, found: dict[str, Any]) -> None:
    order = torch.arange(len(found["films"])).reshape(-1, found["kinds"]).T.flatten()  # films of one kind together
    films = torch.nn.functional.normalize(found["films"][order], dim=1)
    axes = figure.subplots()
    axes.imshow(films @ films.T, cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[], title="likeness of films, kind by kind")


@draws
def custom_operator(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = figure.subplots()
    axes.eventplot([row.nonzero().flatten().tolist() for row in found["history"][0].T], linewidths=1, color="#4c78a8")
    axes.set(xlabel="step", ylabel="neuron", title=f"a beat every {2 + found['kinds'][0]} steps")


@draws
def precompile(figure: plt.Figure, found: dict[str, Any]) -> None:
    curves(figure, {"": found["losses"]}).set_title("trained with a program that another process compiled")


@draws
def resume(figure: plt.Figure, found: dict[str, Any]) -> None:
    axes = curves(figure, {"without a failure": found["expected"]})
    begin = len(found["expected"]) - len(found["found"])
    axes.plot(
        range(begin, len(found["expected"])), found["found"], linestyle=":", linewidth=2.5, label="from the checkpoint"
    )
    axes.legend()


@draws
def processes(figure: plt.Figure, found: dict[str, Any]) -> None:
    one, other = found["parts"]
    curves(figure, {"process 0": one, "process 1": other, "one process": found["alone"]})


@draws
def sizing(figure: plt.Figure, found: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    names = [str(ipus) for ipus in found["estimates"]]
    left.bar(names, [one.throughput for one in found["estimates"].values()], color="#4c78a8")
    left.set(xlabel="IPUs", ylabel="rows a second")
    fullest = [max(ipu.peak_tile_bytes for ipu in one.ipus) / 1024 for one in found["estimates"].values()]
    right.bar(names, fullest, color=["#e45756" if not one.fits else "#54a24b" for one in found["estimates"].values()])
    right.axhline(624, color="#999", linestyle=":")
    right.set(xlabel="IPUs", ylabel="KiB on the fullest tile")


def main(names: list[str]) -> None:
    """Run and draw the programs of these names, or all."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or DRAW:
        spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        program = importlib.util.module_from_spec(spec)
        sys.modules[name] = program  # processes that a program starts look for it here
        spec.loader.exec_module(program)
        figure = plt.figure(figsize=(4.4, 2.4), layout="constrained")
        DRAW[name](figure, program.main())
        figure.savefig(PICTURES / f"{name}.png", dpi=100, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    sys.path.insert(0, str(PROGRAMS))  # the loader's process imports the program by name
    main(sys.argv[1:])
