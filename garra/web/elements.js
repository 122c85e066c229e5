// Making elements. Text only ever becomes text: nothing a model or a file says can become markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; a string is a text node. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Keeps to the end of what grows, unless somebody scrolled up to read. */
export function atEnd(box, change) {
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  change();
  if (follows) box.scrollTop = box.scrollHeight;
}
