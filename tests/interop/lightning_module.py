"""A LightningModule, in a file of its own: the tests are collected without Lightning."""

from pytorch_lightning import LightningModule


class Lightning(LightningModule):
    def __init__(self, network, make_optimizer):
        super().__init__()
        self.network, self.make_optimizer = network, make_optimizer

    def training_step(self, batch, number):
        return self.network(**batch)["loss"]

    def configure_optimizers(self):
        return self.make_optimizer(self.network)
