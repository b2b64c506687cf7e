"""Small CSVs of sweeps for tests of the plotter."""

HEADER = ("status,router,mode,gpus,profile,model,capacity_factor,step_ms,step_ms_p05,step_ms_p95,"
          "tokens_per_s_per_gpu,failed,residual_loss\n")


def sweep_file(folder, rows):
    path = folder / "s.csv"
    path.write_text(HEADER + "".join(rows))
    return str(path)


def row(router, factor, step, failed, loss, mode="prefill", status="ok", profile="a100", model="m"):
    return (f"{status},{router},{mode},32,{profile},{model},{factor},{step},{0.9 * step},{1.25 * step},"
            f"{1e6 / step},{failed},{loss}\n")
