"""A GAN as people write it: the critic steps between the generator's forward and its backward. Prints sums of weights."""

import json

import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

paddle.set_device("gpu")
paddle.set_default_dtype("float64")
paddle.seed(0)


class Generator(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 16))

    def forward(self, z):
        return self.body(z)


class Critic(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.body(x)


generator, critic = Generator(), Critic()
of_generator = paddle.optimizer.Adam(0.01, parameters=generator.parameters())
of_critic = paddle.optimizer.Adam(0.01, parameters=critic.parameters())
random = np.random.RandomState(0)
for _ in range(4):
    z, real = paddle.to_tensor(random.randn(32, 8)), paddle.to_tensor(random.randn(32, 16))
    fake = generator(z)
    (F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
    of_critic.step()
    of_critic.clear_grad()
    F.softplus(-critic(fake)).mean().backward()
    of_generator.step()
    of_generator.clear_grad()
    of_critic.clear_grad()
print(json.dumps([float(p.abs().sum()) for p in generator.parameters() + critic.parameters()]))
