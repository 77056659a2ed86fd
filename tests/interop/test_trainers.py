"""Trainers of other libraries: two steps with a stage give the weights that a plain loop gives."""

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import nonloc
from ranks import in_processes

pytestmark = pytest.mark.interop
STEPS, BATCH, RATE = 2, 4, 0.1
WHOLE = STEPS * BATCH


class Network(nn.Module):
    """Returns the loss with the classes, as transformers' Trainer expects."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.stage = nonloc.DiffusiveStage(8, 3, init_std=0.3)
        self.classifier = nn.Linear(8, 5)

    def forward(self, images, labels):
        logits = self.classifier(self.stage(self.convolution(images)).mean((2, 3)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Images(Dataset):
    def __len__(self):
        return WHOLE

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        return {"images": torch.randn(3, 6, 6, generator=generator), "labels": number % 5}


def sgd(model):
    return torch.optim.SGD(model.parameters(), RATE)


def trained(
    model=None,
    *,
    batch=BATCH,
    epochs=1,
    sampler=None,
    backward=torch.Tensor.backward,
    after=lambda model: None,
):
    """A plain loop."""
    model = Network() if model is None else model
    optimizer = sgd(model)
    for _ in range(epochs):
        for one in DataLoader(Images(), batch, sampler=sampler):
            optimizer.zero_grad()
            backward(model(**one)["loss"])
            optimizer.step()
            after(model)
    return model


def check(model, expected=None):
    expected = trained() if expected is None else expected
    assert not torch.equal(model.stage.maps[0].w_z.weight, Network().stage.maps[0].w_z.weight)
    torch.testing.assert_close(dict(model.named_parameters()), dict(expected.named_parameters()))


def loaded(folder):
    """The network whose weights another process has saved."""
    model = Network()
    model.load_state_dict(torch.load(folder / "state"))
    return model


def train_with_lightning(number, processes, folder):
    import torchvision_models  # noqa: F401  (Lightning imports it)
    from lightning_module import Lightning
    from pytorch_lightning import Trainer

    torch.set_num_threads(1)
    module = Lightning(Network(), sgd)
    trainer = Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="auto" if processes == 1 else "ddp_fork",
        max_epochs=STEPS,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Images(), WHOLE // processes))  # it shuffles: every batch has all images
    torch.save(module.network.state_dict(), f"{folder}/state")


@pytest.mark.parametrize("processes", [1, 2])
def test_lightning(processes, tmp_path):
    # In a new interpreter. Processes that are forked from this one would have the locks of its threads, and no thread
    # that opens them.
    multiprocessing.spawn(train_with_lightning, (processes, str(tmp_path)))
    check(loaded(tmp_path), trained(batch=WHOLE, epochs=STEPS))


def test_accelerate(torchvision):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Network())
    check(accelerator.unwrap_model(trained(model, backward=accelerator.backward)))


def test_trainer_of_transformers(torchvision, tmp_path):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        tmp_path,
        max_steps=STEPS,
        per_device_train_batch_size=WHOLE,  # it shuffles
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    model = Network()
    Trainer(model, arguments, train_dataset=Images()).train()
    check(model, trained(batch=WHOLE, epochs=STEPS))


def test_moving_average():
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model, seen, decay = Network(), [], 0.75
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    def update(model):
        average.update_parameters(model)
        seen.append({name: one.detach().clone() for name, one in model.named_parameters()})

    trained(model, after=update)
    first, second = seen
    expected = {name: decay * first[name] + (1 - decay) * second[name] for name in first}
    torch.testing.assert_close(dict(average.module.named_parameters()), expected)


def shard(rank, folder):
    from torch.distributed.fsdp import fully_shard

    model = Network()
    for module in (model.stage, model):
        fully_shard(module, mesh=distributed.init_device_mesh("cpu", (2,)))
    assert model.stage.maps[0].w_z.weight.to_local().shape[0] == 4
    sampler = DistributedSampler(Images(), shuffle=False)
    trained(model, batch=BATCH // 2, sampler=sampler)
    one = next(iter(DataLoader(Images(), 1)))
    assert nonloc.logit_spreads(model, one).keys() == {"stage"}
    assert len(nonloc.feature_trace(model, one)) == 1
    state = {name: one.full_tensor() for name, one in model.state_dict().items()}
    if rank == 0:
        torch.save(state, f"{folder}/state")


def test_fully_sharded(tmp_path):
    in_processes(2, shard, tmp_path)
    check(loaded(tmp_path))


def test_tensorboard_shows_what_fit_tells(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from nonloc_paper import Recipe, Run, fit

    sizes = {"epochs": 3, "steps_per_epoch": 1, "batch_size": 8, "train_images": 8, "test_images": 8}
    recipe = Recipe(network="restorer8/diffusive-1@2", data="motifs", schedule="constant", **sizes)
    with SummaryWriter(tmp_path / "events") as writer:
        fit(
            recipe,
            tmp_path / "run",
            device="cpu",
            progress=False,
            on_epoch=lambda m: writer.add_scalar("loss", m["train_loss"], m["epoch"]),
        )
    events = EventAccumulator(str(tmp_path / "events")).Reload().Scalars("loss")
    expected = [(m["epoch"], pytest.approx(m["train_loss"])) for m in Run(tmp_path / "run").read_metrics()]
    assert [(event.step, event.value) for event in events] == expected
