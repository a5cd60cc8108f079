"""From a recipe to an op that can run, by the kind of its target."""

from __future__ import annotations

from tilec.driver.executable import Executable
from tilec.driver.recipe import Recipe


def build_executable(recipe: Recipe) -> Executable:
    """Compiles an op, or finds it in the cache. Raises TileError if the program or the target makes that impossible."""
    if recipe.target.kind == "cpu":
        from tilec.driver.cpu_executable import CpuExecutable

        return CpuExecutable(recipe)
    from tilec.driver.cuda_executable import CudaExecutable

    return CudaExecutable(recipe)
