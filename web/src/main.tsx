import { render } from "preact";

import { followRunning } from "./chat/receiving";
import { readAll } from "./conversations/store";
import { readModels } from "./models/list";
import { resumePulls } from "./models/pulls";
import { App } from "./shell/App";
import { applyTheme } from "./shell/theme";

applyTheme();
render(<App />, document.getElementById("app")!);
void readModels().then(resumePulls);
void readAll().then(followRunning);
