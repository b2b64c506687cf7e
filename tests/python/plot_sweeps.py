"""Small CSVs of sweeps over capacity factors for tests of the plotter."""

from plot_rows import write_csv

HEADER = ("status,router,mode,gpus,profile,model,capacity_factor,step_ms,step_ms_p05,step_ms_p95,"
          "tokens_per_s_per_gpu,failed,residual_loss\n")


def sweep_file(folder, rows, **columns):
    """A CSV of these rows, with more columns as write_csv() takes them."""
    return write_csv(folder / "s.csv", HEADER.strip(), [row.strip() for row in rows], columns)


def row(router, factor, step, failed, loss, mode="prefill", status="ok", profile="a100", model="m"):
    return (f"{status},{router},{mode},32,{profile},{model},{factor},{step},{0.9 * step},{1.25 * step},"
            f"{1e6 / step},{failed},{loss}\n")
