# The recipe for training (docs/pytorch.md), each form of it compared with the same steps without a cache. Needs a GPU.
import copy
import unittest

import torch

import graphcache_torch
from test_torch import ON_GPU

SIZES = (32, 48)
STEPS = 12


class Direct:
    """What a cache is compared with."""

    def run(self, key, fn, *arguments):
        return fn(*arguments)


@unittest.skipUnless(ON_GPU, "PyTorch has no GPU here")
class TrainingTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.GELU(), torch.nn.Linear(128, 10)
        ).cuda()
        self.inputs = torch.rand(STEPS, max(SIZES), 64, device="cuda")
        self.targets = torch.rand(STEPS, max(SIZES), 10, device="cuda")

    def train(self, cache, make):
        """Trains a copy of the model. make(cache, model) returns a step, which takes an input and a target."""
        model = copy.deepcopy(self.model)
        step = make(cache, model)
        inputs = {size: torch.empty(size, 64, device="cuda") for size in SIZES}
        targets = {size: torch.empty(size, 10, device="cuda") for size in SIZES}
        trace = []
        for i in range(STEPS):
            size = SIZES[i % 3 % 2]
            inputs[size].copy_(self.inputs[i, :size])
            targets[size].copy_(self.targets[i, :size])
            loss = step(inputs[size], targets[size])
            trace.append(loss.clone())
            trace += [parameter.detach().clone() for parameter in model.parameters()]
            trace += [parameter.grad.clone() for parameter in model.parameters()]
        return trace

    def check(self, make, keys=len(SIZES), rtol=2e-4, atol=2e-5):
        """The same losses, parameters and gradients after each step; only the first run of a key is direct."""
        cache = graphcache_torch.Cache()
        for a, b in zip(self.train(cache, make), self.train(Direct(), make), strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
        self.assertEqual((cache.stats()["eager"], cache.stats()["captures"]), (keys, keys))

    def whole_step(self, optimizer_of):
        """The whole step in a graph."""

        def make(cache, model):
            optimizer = optimizer_of(model.parameters())

            def step(x, y):
                optimizer.zero_grad(set_to_none=False)
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                return loss.detach()

            return lambda x, y: cache.run("step", step, x, y)

        return make

    def test_optimizers_in_the_graph(self):
        rate = torch.tensor(0.01, device="cuda")
        for optimizer_of in (
            lambda p: torch.optim.SGD(p, lr=0.1),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
            lambda p: torch.optim.Adam(p, lr=rate.clone(), capturable=True),
            lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, capturable=True),
            lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9, capturable=True),
        ):
            self.check(self.whole_step(optimizer_of))

    def test_warmed(self):
        """warm() makes one direct step for a key that is new, as a first run does."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = self.inputs[0], self.targets[0]

        def step(x, y):
            optimizer.zero_grad(set_to_none=False)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

        cache = graphcache_torch.Cache()
        cache.warm("step", step, x, y)
        for _ in range(3):
            cache.run("step", step, x, y)
        trained = copy.deepcopy(model.state_dict())
        self.assertEqual((cache.stats()["replayed"], cache.stats()["eager"]), (3, 0))
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            step(x, y)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(trained[name], value, rtol=2e-4, atol=2e-5)

    def test_gradients_that_are_made_anew(self):
        """set_to_none=True, PyTorch's default: parameters are right, and p.grad is that of the last call of step."""

        def make(cache, model):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)

            def step(x, y):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                return loss.detach()

            return lambda x, y: cache.run("step", step, x, y)

        def parameters(cache):
            trace = self.train(cache, make)
            return [t for i, t in enumerate(trace) if i % 13 < 7]

        cache = graphcache_torch.Cache()
        for a, b in zip(parameters(cache), parameters(Direct()), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
        self.assertEqual((cache.stats()["captures"], cache.stats()["capture_failures"]), (len(SIZES), len(SIZES)))

    def test_amp_clipping_and_a_scheduler(self):
        """The graph has the forward and backward pass; the rest, which decides on the CPU, is outside."""

        def make(cache, model):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
            scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=4)

            def forward_backward(x, y):
                optimizer.zero_grad(set_to_none=False)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                return loss.detach()

            def step(x, y):
                loss = cache.run("step", forward_backward, x, y)
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                return loss

            return step

        self.check(make, rtol=2e-2, atol=2e-3)

    def test_a_scheduler_and_clipping_in_the_graph(self):
        """A tensor as the learning rate; the scheduler writes into it between the runs."""

        def make(cache, model):
            rate = torch.tensor(0.01, device="cuda")
            optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

            def step(x, y):
                optimizer.zero_grad(set_to_none=False)
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
                optimizer.step()
                return loss.detach()

            def whole(x, y):
                loss = cache.run("step", step, x, y)
                scheduler.step()
                return loss

            return whole

        self.check(make)

    def test_accumulation(self):
        """Gradients of several runs are added; a step follows each third."""

        def make(cache, model):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
            count = 0

            def accumulate(x, y):
                loss = torch.nn.functional.mse_loss(model(x), y) / 3
                loss.backward()
                return loss.detach()

            def update():
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

            def step(x, y):
                nonlocal count
                loss = cache.run("accumulate", accumulate, x, y)
                count += 1
                if count % 3 == 0:
                    cache.run("update", update)
                return loss

            return step

        self.check(make, keys=len(SIZES) + 1)


if __name__ == "__main__":
    unittest.main()
