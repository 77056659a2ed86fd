// What the panels of records share: drawings as SVG, and tables that can stand on a phone.
"use strict";

// An SVG element; attributes and children as in explorer.el.
explorer.svg = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// A power of ten, such as 10⁵.
explorer.power = (exponent) => `10${[...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;

// A number with a minus sign; a dash for none.
explorer.number = (value, digits = 3) => {
  if (value == null) return "–";
  const [digitsOnly, exponent] = explorer.format(value, digits).split("e");
  return digitsOnly.replace("-", "−") + (exponent === undefined ? "" : ` · ${explorer.power(Number(exponent))}`);
};

// A table of texts. On narrow screens each line is a card, whose cells name their column; a line of one cell is a title.
explorer.table = (caption, header, lines) => {
  const { el } = explorer;
  const line = ([first, ...others]) =>
    others.length === 0
      ? el("tr", { class: "title" }, el("th", { scope: "rowgroup", colspan: header.length }, first))
      : el(
          "tr",
          {},
          el("th", { scope: "row", "data-name": header[0] }, first),
          ...others.map((text, place) => el("td", { "data-name": header[place + 1], class: text === "–" && "none" }, text)),
        );
  return el(
    "table",
    { class: "cards" },
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...header.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...lines.map(line)),
  );
};
