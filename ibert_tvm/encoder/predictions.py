"""Scores, classes, entities and answers: what heads on texts say.

`Predictions.predict` and `rank` are those of sentence-transformers' `CrossEncoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import UsageError, check_choice
from ..model.scores import FUNCTIONS, ranked_classes, ranked_documents
from ..model.spans import LONGEST_ANSWER, WINDOW, best_answer
from .batches import Text
from .readings import STRATEGIES, tagged_text
from .texts import TextModel, array_of, converted, listed, tensor_of

if TYPE_CHECKING:
    from .pool import Pool


class Predictions(TextModel):
    """The methods of models that classify, compare, tag or answer."""

    def predict(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: str | Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
    ) -> Any:
        """Scores of pairs of texts, as ``CrossEncoder.predict`` gives them.

        Parameters
        ----------
        inputs : (str, str) or sequence of (str, str)
            A pair, or pairs.
        prompt_name, prompt
            What is put before the first text of a pair; see `encode`.
        activation_fn
            What makes scores of logits: one of `ibert_tvm.model.scores.FUNCTIONS`, or something
            that takes and returns a tensor; by default what the source says, else sigmoid for one
            class and nothing for several.
        apply_softmax
            Of scores of several classes.
        batch_size, show_progress_bar, convert_to_numpy, convert_to_tensor, device, pool, chunk_size
            As of `encode`.

        Returns
        -------
        numpy.ndarray, torch.Tensor or list
            float32 [pairs], or of a model with several classes [pairs, classes].

        Raises
        ------
        UsageError
            If the model gives no scores, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        name = "sigmoid" if self.num_labels == 1 else "none"
        before = self.prompt_text(prompt, prompt_name)
        items = inputs.tolist() if isinstance(inputs, np.ndarray) else list(inputs)
        single = bool(items) and isinstance(items[0], str)
        pairs: list[Text] = [
            (before + first, second)
            for first, second in listed(
                [tuple(pair) for pair in ([items] if single else items)], pairs=True
            )
        ]
        with self._run_by(device, pool, chunk_size) as run:
            rows = self._vectors("classify", pairs, batch_size, show_progress_bar, run)
        logits = rows.dequantize()
        if activation_fn is None or isinstance(activation_fn, str):
            function = self.score_function("rerank", activation_fn) or name
            scores = FUNCTIONS[function](logits).astype(np.float32)
        else:
            scores = array_of(activation_fn(tensor_of(logits)))
        if apply_softmax and self.num_labels > 1:
            scores = FUNCTIONS["softmax"](scores).astype(np.float32)
        scores = scores[:, 0] if self.num_labels == 1 else scores
        return converted(scores, single, convert_to_numpy, convert_to_tensor)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: str | Callable[[Any], Any] | None = None,
        device: str | Sequence[str] | None = None,
        pool: Pool | None = None,
        chunk_size: int | None = None,
    ) -> list[dict[str, Any]]:
        """Order documents by the score of each with a query, as ``CrossEncoder.rank`` does.

        Parameters
        ----------
        query
            The query.
        documents
            Any number.
        top_k
            Give only the best.
        return_documents
            Give each document, too, as ``text``.
        prompt_name, prompt, batch_size, show_progress_bar, activation_fn, device, pool, chunk_size
            As of `predict`; by default the score is the sigmoid of the logit.

        Returns
        -------
        list of dict
            ``corpus_id``, the place of a document, and ``score``, a float32, best first; of equal
            scores the earlier document.

        Raises
        ------
        UsageError
            If the model gives no single score for a pair, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        self.output_name("rerank")
        if self.num_labels != 1:
            raise self._refusal(
                "rerank",
                f"it has {self.num_labels} classes, and a score is one",
                "give a model with one class, a cross-encoder",
            )
        texts = listed(documents)
        scores = self.predict(
            [(query, document) for document in texts],
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            activation_fn,
            device=device,
            pool=pool,
            chunk_size=chunk_size,
        )
        return [
            {"corpus_id": place, "score": score}
            | ({"text": texts[place]} if return_documents else {})
            for place, score in ranked_documents(scores[:, None], "none", top_k)
        ]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        batch_size: int = 32,
        function: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[dict[str, Any]]:
        """`rank` with arguments in another order, `function` being its `activation_fn`."""
        return self.rank(
            query, documents, top_k, False, prompt_name, prompt, batch_size, False, function
        )

    def classify(
        self,
        texts: str | Sequence[str | tuple[str, str]],
        top_k: int | None = 1,
        batch_size: int = 32,
        function: str | None = None,
        threshold: float | bool | None = None,
    ) -> Any:
        """Classes of texts, or of pairs of texts.

        Parameters
        ----------
        texts
            A text, or any number of texts or pairs.
        top_k
            1 gives the best class; None all, and another number so many, as a list.
        batch_size
            Texts of a batch.
        function : {"softmax", "sigmoid", "none", "tanh", "relu"}, optional
            What makes scores of logits; by default what the model's ``problem_type`` says, else
            softmax, and sigmoid for a single class.
        threshold
            Leave out classes with a lower score; True for the thresholds that the source states.
            With one, every text has a list.

        Returns
        -------
        dict, or list
            ``label`` and ``score`` for each text, or a list of these, best first; without the outer
            list for one text.

        Raises
        ------
        UsageError
            If the model does not classify texts, or an argument has no meaning.
        InputError
            If a text is no text.
        """
        self.output_name("classify")
        function, least = self.score_function("classify", function), self.thresholds(threshold)
        items: list[Text] = [texts] if isinstance(texts, str) else list(listed(texts, pairs=True))
        logits = self._vectors("classify", items, batch_size, False).dequantize()
        results: list[Any] = ranked_classes(logits, self.labels, top_k, function, least)
        if top_k == 1 and least is None:
            results = [classes[0] for classes in results]
        return results[0] if isinstance(texts, str) else results

    def tag(
        self, texts: str | Sequence[str], aggregation_strategy: str = "simple", batch_size: int = 32
    ) -> Any:
        """Entities in texts, of any length: a long one is tagged window by window.

        Parameters
        ----------
        texts
            A text, or any number.
        aggregation_strategy : {"simple", "none", "first", "max", "average"}
            Neighbouring tokens of one class as one entity, or every token by itself; or
            neighbouring words, each with the class of its first or surest token, or of the mean.
        batch_size
            Windows of a batch.

        Returns
        -------
        list of dict, or list of such lists
            ``entity_group`` (or ``entity``), ``score``, ``word``, ``start`` and ``end``, without
            what has the class ``O``.

        Raises
        ------
        UsageError
            If the model does not classify tokens, or the strategy is unknown.
        InputError
            If a text is no text, or empty.
        """
        name = self.output_name("tag")
        check_choice("aggregation_strategy", aggregation_strategy, STRATEGIES)
        items = [texts] if isinstance(texts, str) else listed(texts)
        self.tokenizer.check(items)
        windows = [self.tokenizer.windows(item, self.max_seq_length) for item in items]
        logits = iter(self._run_windows([w for each in windows for w in each], name, batch_size))
        label = self.library.metadata.info.label
        results = [
            tagged_text(
                text, own, [next(logits) for _ in own], self.tokenizer, label, aggregation_strategy
            )
            for text, own in zip(items, windows, strict=True)
        ]
        return results[0] if isinstance(texts, str) else results

    def answer(
        self,
        question: str,
        context: str,
        max_answer_len: int = LONGEST_ANSWER,
        batch_size: int = 32,
        handle_impossible_answer: bool = False,
        max_seq_len: int | None = None,
        doc_stride: int | None = None,
    ) -> dict[str, Any]:
        """The part of a context of any length that answers a question best.

        Arguments and results are those of the pipeline of transformers 4.

        Parameters
        ----------
        question, context
            The context is read in overlapping windows where it is long.
        max_answer_len
            Most tokens of an answer.
        batch_size
            Windows of a batch.
        handle_impossible_answer
            Give an empty answer where none is more likely in every window than the best one.
        max_seq_len
            Most tokens of a window, question included; by default `max_seq_length`, at most 384.
        doc_stride
            Tokens that windows share; by default 128, at most half a window.

        Returns
        -------
        dict
            ``answer``, ``score``, ``start`` and ``end``, characters of the context.

        Raises
        ------
        UsageError
            If the model does not answer questions.
        InputError
            If a text is no text or empty, or the question leaves no room for the context.
        """
        name = self.output_name("answer")
        length = min(max_seq_len or WINDOW, self.max_seq_length)
        windows = self.tokenizer.question_windows((question, context), length, doc_stride)
        logits = self._run_windows(windows, name, batch_size)
        return best_answer(context, windows, logits, max_answer_len, handle_impossible_answer)

    def score_function(self, method: str, chosen: str | None = None) -> str | None:
        """What makes scores of logits.

        Parameters
        ----------
        method
            ``classify`` or ``rerank``.
        chosen
            The method's argument `function`.

        Returns
        -------
        str or None
            Of `ibert_tvm.model.scores.FUNCTIONS`; None for the method's default.

        Raises
        ------
        UsageError
            If there is no such function.
        """
        if chosen is not None:
            check_choice("function", chosen, FUNCTIONS)
            return chosen
        known = self.post_processing
        return known.pairs if method == "rerank" else known.classes

    def thresholds(self, chosen: float | bool | None) -> float | Mapping[str, float] | None:
        """Least scores that the argument `threshold` of `classify` means.

        Raises
        ------
        UsageError
            If the thresholds of the source are asked for, and it states none.
        """
        if chosen is not True:
            return None if chosen is False else chosen
        if not self.post_processing.thresholds:
            raise UsageError(
                "the model has no thresholds of its own",
                where=str(self.library.metadata.path),
                why="the source's config.json states none",
                todo="give a number",
            )
        return self.post_processing.thresholds
