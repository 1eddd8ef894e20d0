// An empty conversation: questions to begin with, and models to get while only the guide is here.
import { chats } from "../models/choice";
import { mayChange, models, modelsProblem } from "../models/list";
import { SuggestedList } from "../models/SuggestedList";

/** A heading, and the question that a click on it sends. */
const QUESTIONS = [
  { title: "Explain an idea", question: "Explain how a hash table works, with a small example." },
  { title: "Write code", question: "Write a Python function that finds files with equal content in a folder." },
  { title: "Plan something", question: "Plan a weekend in Lisbon for two people who like food and long walks." },
  { title: "Rewrite a text", question: "Make this friendlier: “I need the report today. Why is it late?”" },
];
const ABOUT_CHASKI = [
  "How do I pull a model?",
  "Where are models kept?",
  "How do I use fewer cores?",
  "How do I use it from Python?",
];

export function Welcome({ onAsk, model }: { onAsk: (text: string) => void; model: string }) {
  const chosen = models.value.find((each) => each.name === model);
  const hasOnlyGuide = models.value.length > 0 && !models.value.some((each) => chats(each) && !each.bundled);
  return (
    <div class="scroller" tabIndex={0} role="region" aria-label="Beginning">
      <div class="welcome">
        <h2>{chosen?.bundled ? "Ask about chaski" : "Ask anything"}</h2>
        <p>
          {chosen?.bundled
            ? "The guide answers with prewritten texts. It is no language model."
            : "Your questions are answered by this server. Conversations stay in this browser."}
          {modelsProblem.value && <strong class="problem">{modelsProblem.value}</strong>}
        </p>
        {chosen?.bundled && (
          <div class="short-questions">
            {ABOUT_CHASKI.map((question) => (
              <button type="button" key={question} onClick={() => onAsk(question)}>
                {question}
              </button>
            ))}
          </div>
        )}
        {chosen && chats(chosen) && !chosen.bundled && (
          <div class="questions">
            {QUESTIONS.map(({ title, question }) => (
              <button type="button" key={question} onClick={() => onAsk(question)}>
                <strong>{title}</strong>
                <span>{question}</span>
              </button>
            ))}
          </div>
        )}
        {hasOnlyGuide && (
          <section class="get-model" aria-label="Get a model">
            <h3>Get a model</h3>
            {mayChange.value ? (
              <>
                <SuggestedList most={3} />
                <a href="#/models">More models, Hugging Face, and your own choice</a>
              </>
            ) : (
              <p>Only the guide is here. Somebody with an admin key can pull a model.</p>
            )}
          </section>
        )}
      </div>
    </div>
  );
}
