"""The tile model (sim/profile/kernels/gemm_curve.hpp says the physics) at given shapes, and its
slopes by its parameters."""
import numpy as np

from tools.fit.gemm.parameters import (INPUT, KERNEL, OF_KERNELS, SPLITS, TILES, read,
                                       shared_names)

CHUNK = 250  # points at once: what the candidates need stays in cache


class Physics:
    """The tile model at given shapes: everything about them that the parameters do not change."""

    def __init__(self, rows, sms, step, element=2.0, number=np.float64):
        self.m, self.n, self.k = (rows[name].to_numpy(float) for name in "mnk")
        self.element, self.number = element, number
        tiles = np.ceil(self.m[:, None] / TILES[:, 0]) * np.ceil(self.n[:, None] / TILES[:, 1])
        waves = tiles[:, :, None] * SPLITS / sms
        whole = np.ceil(waves)
        steps = np.ceil(np.ceil(self.k / step)[:, None] / SPLITS)[:, None, :]
        self.whole, self.steps = whole.astype(number), steps.astype(number)
        self.partial = (np.maximum(waves, 1) - whole).astype(number)
        self.reduced = ((self.m * self.n)[:, None] * SPLITS)[:, None, :].astype(number)
        self.input = (self.m * self.k)[:, None, None].astype(number)
        self.split = (SPLITS > 1).astype(number)

    def memory_us(self, shared):
        weights, tokens = self.element * self.n * self.k, self.element * self.m * self.k
        result = 2 * self.m * self.n
        total = weights + tokens + result
        kept = lambda held: 1 / (1 + (held / shared["l2_bytes"]) ** shared["l2_sharpness"])
        hot = (weights * kept(shared["weight_copies"] * weights + tokens + result)
               + (tokens + result) * kept(total))
        return (hot / shared["l2_bytes_per_us"] + (total - hot) / shared["dram_bytes_per_us"]
                + shared["ramp_us"] * total / (total + shared["l2_bytes"]))

    def compute_us(self, kernel, prefix):
        """(microseconds of the tiles of every candidate, of one tile's steps, of a tile, waves run,
        the overlap of each kernel)."""
        step, tile, overlap = (kernel[prefix + name][:, None].astype(self.number)
                               for name in ("step_us", "tile_us", "overlap"))
        run = self.whole + overlap * self.partial
        inner = self.steps * step
        return run * (inner + tile), inner, tile, run, overlap

    def fixed_us(self, shared, prefix):
        """What a candidate takes beside compute and memory: quantising A, reducing splits."""
        return (self.input * shared.get(INPUT, 0.0), shared[prefix + "reduce_us"] * self.split,
                shared[prefix + "reduce_us_per_element"] * self.split * self.reduced)

    def log_us(self, kernel, shared, prefix, memory):
        """[points, tiles, splits] log microseconds of every candidate: what it takes (no prefix)
        or what the choice believes it takes ("choice_")."""
        power = shared["overlap_power"]
        compute = self.compute_us(kernel, prefix)[0]
        if self.number is np.float64:
            kernels = (compute**power + memory**power) ** (1 / power)
        else:
            kernels = self.joined(compute, memory, power)[0]
        return np.log(kernels + shared["launch_us"] + sum(self.fixed_us(shared, prefix)))

    def joined(self, compute, memory, power):
        """((compute^power + memory^power)^(1 / power), compute's share of the sum, the logarithm's
        slope by the power), without overflow in single precision."""
        lead = np.log(compute) - np.log(memory)
        rest = np.exp(-power * np.abs(lead))
        over = np.log(1 + rest) / power
        share = np.where(lead > 0, 1, rest) / (1 + rest)
        kernels = np.maximum(compute, memory) * np.exp(over)
        return kernels, share, share * lead / power - (np.maximum(lead, 0) + over) / power

    def slopes(self, kernel, shared, prefix, memory):
        """(log_us, its derivatives by the logs of what it is made of, of the overlap by its logit, of
        the power by itself)."""
        compute, inner, tile, run, overlap = self.compute_us(kernel, prefix)
        kernels, share, by_power = self.joined(compute, memory, shared["overlap_power"])
        quantised, fixed, growing = self.fixed_us(shared, prefix)
        total = kernels + shared["launch_us"] + quantised + fixed + growing
        part = kernels / total
        by_compute = part * share
        by_tile = by_compute / (inner + tile)
        return np.log(total), {
            "step_us": by_tile * inner, "tile_us": by_tile * tile,
            "overlap": by_compute * self.partial * overlap * (1 - overlap) / run,
            "memory": part - by_compute, "overlap_power": part * by_power,
            "launch_us": shared["launch_us"] / total, INPUT: quantised / total,
            "reduce_us": fixed / total, "reduce_us_per_element": growing / total}

    def candidates(self, kernel, shared):
        memory = self.memory_us(shared)[:, None, None].astype(self.number)
        return (self.log_us(kernel, shared, "", memory),
                self.log_us(kernel, shared, "choice_", memory))

    def chosen(self, taken, believed, shared):
        """Log time of the library's choice, and the weights of the candidates."""
        lowest = believed.min(axis=(1, 2), keepdims=True)
        weights = np.exp(-shared["choice_power"] * (believed - lowest))
        weights /= weights.sum(axis=(1, 2), keepdims=True)
        return (weights * taken).sum(axis=(1, 2)), weights

    def throttled(self, log_us, shared):
        time = np.exp(log_us)
        load = 2 * self.m * self.n * self.k / time / (1e6 * shared["throttle_tflops"])
        return log_us + shared["throttle"] * load**2 * time / (time + shared["throttle_us"])

    def predict(self, kernel, shared):
        """Log microseconds at each shape."""
        taken, believed = self.candidates(kernel, shared)
        return self.throttled(self.chosen(taken, believed, shared)[0], shared)

    def gradient(self, parameters, step=1e-4):
        """(prediction, [points, parameters] derivatives): of what the candidates take directly, of
        the few figures behind memory and throttling by a small step."""
        kernel, shared = read(parameters)
        memory = self.memory_us(shared)
        wide = memory[:, None, None].astype(self.number)
        taken, own = self.slopes(kernel, shared, "", wide)
        believed, belief = self.slopes(kernel, shared, "choice_", wide)
        raw, weights = self.chosen(taken, believed, shared)
        value = self.throttled(raw, shared)
        chain = (self.throttled(raw + step, shared) - value) / step
        # What a change of a candidate's believed time does to the weighted mean.
        swayed = -shared["choice_power"] * weights * (taken - raw[:, None, None])
        kinds = len(KERNEL)
        result = np.empty((len(raw), len(parameters)))
        for kind, name in enumerate(KERNEL[:3]):
            through_choice = (swayed * belief[name]).sum(axis=2)
            direct = (weights * own[name]).sum(axis=2)
            result[:, kind:OF_KERNELS:kinds] = (direct + through_choice) * chain[:, None]
            result[:, kind + 3:OF_KERNELS:kinds] = through_choice * chain[:, None]
        result[:, OF_KERNELS:] = self.shared_gradient(parameters, step, {
            "memory": memory, "value": value, "raw": raw, "chain": chain,
            "of": lambda name: ((weights * own[name]).sum(axis=(1, 2)),
                                (swayed * belief[name]).sum(axis=(1, 2))),
            "choice_power": -shared["choice_power"] * (
                weights * believed * (taken - raw[:, None, None])).sum(axis=(1, 2))})
        return value, result

    def shared_gradient(self, parameters, step, known):
        """[points, SHARED] derivatives; `known` holds what `gradient` has of the candidates."""
        through_memory, columns = sum(known["of"]("memory")), []
        for index, name in enumerate(shared_names(parameters)):
            moved = parameters.copy()
            moved[OF_KERNELS + index] += step
            shared = read(moved)[1]
            plain = name.replace("choice_", "")
            if name in ("throttle", "throttle_us", "throttle_tflops"):
                columns.append((self.throttled(known["raw"], shared) - known["value"]) / step)
                continue
            if name == "overlap_power":
                change = sum(known["of"](name)) * (shared[name] - 1)
            elif name == "choice_power":
                change = known["choice_power"]
            elif name in ("launch_us", INPUT):
                change = sum(known["of"](name))
            elif plain in ("reduce_us", "reduce_us_per_element"):
                change = known["of"](plain)[1 if name.startswith("choice_") else 0]
            else:
                moved_memory = np.log(self.memory_us(shared) / known["memory"])
                change = through_memory * moved_memory / step
            columns.append(change * known["chain"])
        return np.stack(columns, axis=1)


def log_physics(rows, kernel, shared, sms, step, element=2.0, chunk=CHUNK):
    """(log microseconds of the tile model, the share of them that memory does not explain)."""
    log_us, compute_share = [], []
    for at in range(0, len(rows), chunk):
        model = Physics(rows.iloc[at:at + chunk], sms, step, element)
        log_us.append(model.predict(kernel, shared))
        compute_share.append(np.clip(1 - model.memory_us(shared) / np.exp(log_us[-1]), 0, 1))
    return np.concatenate(log_us), np.concatenate(compute_share)
