// The annotation page: the clicker, the strip of photographs, the list of objects, the panel
// and the grid for reviews around it, and the transport that takes actions to the server.

import { page } from "./page.js";

window.probsegPage = page; // for the console
page.start();
