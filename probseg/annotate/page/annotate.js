// The annotation page: the strip of photographs, the list of objects and the panel of knobs around
// the clicker, and the transport that takes its actions to the server.

import { page } from "./page.js";

window.probsegPage = page; // for the console
page.start();
