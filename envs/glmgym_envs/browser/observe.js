// Installed in an isolated world of each document: the page can neither see nor change what is here.
// glm.observe lists what is shown, one record per element worth naming; an element keeps its id as long as it lives.
globalThis.glm = (() => {
  const ids = new WeakMap();
  const elements = new Map(); // id -> WeakRef
  let next = 1;

  const LONGEST = 300; // characters of one name or value
  const ROLES = {
    A: "link", BUTTON: "button", TEXTAREA: "textbox", SUMMARY: "button", IMG: "image", CANVAS: "canvas",
    H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading", OPTION: "option",
  };
  const INPUTS = {
    button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio",
    range: "slider", number: "spinbutton", search: "searchbox", file: "file", color: "color", date: "date",
    time: "time", hidden: "",
  };
  const ACTIVE = new Set([
    "link", "button", "textbox", "checkbox", "radio", "slider", "spinbutton", "searchbox", "combobox", "listbox", "tab",
    "menuitem", "option", "switch", "treeitem", "file", "color", "date", "time", "menuitemcheckbox", "menuitemradio",
  ]);
  const SKIPPED = new Set(["SCRIPT", "STYLE", "TEMPLATE", "HEAD", "NOSCRIPT", "META", "LINK", "TITLE", "BR", "HR"]);
  const SHAPES = new Set(["rect", "circle", "ellipse", "polygon", "polyline", "line", "path", "text"]);

  const clip = (text) =>
    text.length <= LONGEST ? text : `${text.slice(0, (2 * LONGEST) / 3)} ... ${text.slice(-LONGEST / 3)}`;
  const squeeze = (text) => clip(text.replace(/\s+/g, " ").trim());
  const idOf = (el) => {
    if (!ids.has(el)) { ids.set(el, next); elements.set(next, new WeakRef(el)); next += 1; }
    return ids.get(el);
  };
  const children = (el) => [...(el.shadowRoot || el).children];
  const isInline = (el) => getComputedStyle(el).display.startsWith("inline");
  const ownText = (el) => squeeze([...el.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join(" "));

  function roleOf(el) {
    const said = el.getAttribute("role");
    if (said === "presentation" || said === "none") {
      if (el.tabIndex < 0) return "";
    } else if (said) {
      return said.split(" ")[0];
    }
    if (el instanceof SVGElement) return SHAPES.has(el.tagName) ? "shape" : "";
    if (el.tagName === "INPUT") return INPUTS[el.type] ?? "textbox";
    if (el.tagName === "SELECT") return el.multiple ? "listbox" : "combobox";
    if (el.tagName === "A" && !el.hasAttribute("href")) return "";
    if (el.isContentEditable && !(el.parentElement && el.parentElement.isContentEditable)) return "textbox";
    return ROLES[el.tagName] ?? "";
  }

  // Nothing says that an element listens to clicks; these are the signs that a person would see.
  function looksActive(el, style) {
    if (el.hasAttribute("onclick") || (el.tabIndex >= 0 && el.hasAttribute("tabindex"))) return true;
    const parent = el.parentElement;
    const inherits = parent && getComputedStyle(parent).cursor === "pointer" && el.tagName !== "LI"; // trees nest
    return style.cursor === "pointer" && !inherits;
  }

  const holds = (el, selector) => [...el.querySelectorAll(selector)].some((inner) => inner.getClientRects().length);

  function nameOf(el, role) {
    const label = el.getAttribute("aria-label");
    if (label) return squeeze(label);
    const by = (el.getAttribute("aria-labelledby") || "").split(/\s+/).map((id) => id && document.getElementById(id));
    if (by.some(Boolean)) return squeeze(by.filter(Boolean).map((found) => found.textContent).join(" "));
    if (el.tagName === "INPUT" && role === "button") return squeeze(el.value || el.alt || el.type);
    if (el.labels && el.labels.length) {
      const named = squeeze([...el.labels].map((l) => textOf(l)).join(" "));
      if (named) return named;
    }
    if (el.tagName === "IMG") return squeeze(el.alt || (el.getAttribute("src") || "").split("/").pop());
    if (["INPUT", "SELECT", "TEXTAREA"].includes(el.tagName)) return squeeze(el.placeholder || el.title || el.name || "");
    return textOf(el) || squeeze(el.getAttribute("title") || "");
  }

  // What is shown of an element's text: a hidden part is not read out, nor what stands inside a control.
  function textOf(el) {
    const parts = [];
    const read = (node) => {
      if (node.nodeType === 3) parts.push(node.data);
      if (node.nodeType !== 1 || SKIPPED.has(node.tagName)) { if (node.tagName === "BR") parts.push(" "); return; }
      if (["SELECT", "TEXTAREA"].includes(node.tagName)) return;
      const style = getComputedStyle(node);
      if (style.display === "none" || style.visibility !== "visible" || style.fontSize === "0px") return;
      if (!style.display.startsWith("inline")) parts.push(" ");
      node.childNodes.forEach(read);
      if (!style.display.startsWith("inline")) parts.push(" ");
    };
    read(el);
    return squeeze(parts.join(""));
  }

  function statesOf(el, role, style) {
    const states = [];
    const aria = (name) => el.getAttribute("aria-" + name);
    if (role === "checkbox" || role === "radio" || role === "switch") {
      states.push(el.checked || aria("checked") === "true" ? "checked" : "unchecked");
    }
    if (el.disabled || aria("disabled") === "true") states.push("disabled");
    if (el.readOnly) states.push("readonly");
    if (el.required) states.push("required");
    if (aria("selected") === "true") states.push("selected");
    if (aria("expanded")) states.push(aria("expanded") === "true" ? "expanded" : "collapsed");
    if (document.activeElement === el) states.push("focused");
    if (role === "slider" || role === "spinbutton") {
      if (el.min) states.push("min " + el.min);
      if (el.max) states.push("max " + el.max);
    }
    const scrolls = el.tagName === "TEXTAREA" || /auto|scroll/.test(style.overflowY);
    if (scrolls && el.scrollHeight > el.clientHeight + 2) {
      const share = Math.round((100 * el.scrollTop) / (el.scrollHeight - el.clientHeight));
      states.push("scrolled " + share + "%");
    }
    return states;
  }

  function valueOf(el, role) {
    if (role === "textbox" && el.isContentEditable) return squeeze(el.innerText);
    if (el.tagName === "SELECT") return [...el.selectedOptions].map((o) => squeeze(o.label)).join(", ");
    if (["checkbox", "radio", "button", ""].includes(role)) return null;
    if (el.tagName === "INPUT" && el.type === "password") return "*".repeat(el.value.length);
    if (el.tagName === "INPUT" || el.tagName === "TEXTAREA") return clip(el.value);
    return null;
  }

  const hex = (colour) => {
    const parts = (colour.match(/[\d.]+/g) || []).map(Number);
    if (parts.length < 3 || parts[3] === 0) return "";
    return "#" + parts.slice(0, 3).map((part) => Math.round(part).toString(16).padStart(2, "0")).join("");
  };

  function looksLike(el, role, style, box) {
    const at = `at ${Math.round(box.left + scrollX)},${Math.round(box.top + scrollY)}`;
    const size = `size ${Math.round(box.width)}x${Math.round(box.height)}`;
    if (role === "shape") return `${el.tagName} ${hex(style.fill) || hex(style.stroke)} ${at} ${size}`;
    const kind = el.getAttribute("class") ? "." + el.getAttribute("class").trim().split(/\s+/).join(".").slice(-60) : "";
    return [kind, hex(style.backgroundColor), at, size].filter(Boolean).join(" ");
  }

  function observe(ignored) {
    const records = [];
    const emit = (el, role, name, style, box) => {
      const record = { id: idOf(el), role, name, value: valueOf(el, role), states: statesOf(el, role, style) };
      if (el.tagName === "SELECT") record.options = [...el.options].map((o) => squeeze(o.label));
      const hasIcon = role === "clickable" && style.backgroundImage !== "none"; // a folder, a file, a star
      if (hasIcon || role === "shape" || role === "box" || (!name && record.value === null)) record.look = looksLike(el, role, style, box);
      record.shown = box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
      records.push(record);
    };
    const walk = (el, quiet) => {
      if (SKIPPED.has(el.tagName) || (ignored && el.matches(ignored))) return;
      const style = getComputedStyle(el);
      if (style.display === "none") return;
      const box = el.getBoundingClientRect();
      const isVisible = style.visibility === "visible" && style.opacity !== "0" && (box.width > 0 || box.height > 0);
      let role = isVisible ? roleOf(el) : "";
      let inner = quiet;
      if (isVisible && (ACTIVE.has(role) || (role !== "shape" && looksActive(el, style)))) {
        role = ACTIVE.has(role) ? role : "clickable";
        const name = nameOf(el, role);
        // A clickable region that holds controls of its own is only a frame around them.
        const isFrame = role === "clickable" && holds(el, "a[href],button,input,select,textarea,[role],[tabindex],li");
        if (!isFrame || ownText(el)) emit(el, role, isFrame ? ownText(el) : name, style, box);
        inner = quiet || !isFrame;
      } else if (isVisible && role === "shape") {
        emit(el, role, textOf(el), style, box);
        inner = true;
      } else if (isVisible && (role === "image" || role === "canvas")) {
        emit(el, role, nameOf(el, role), style, box);
      } else if (isVisible && !quiet) {
        const text = ownText(el);
        const labels = el.tagName === "LABEL" && el.control;
        if (role === "heading" || (text && children(el).every(isInline))) {
          if (!labels) emit(el, role === "heading" ? role : "text", textOf(el), style, box);
          inner = true;
        } else if (text) {
          emit(el, "text", text, style, box);
        } else if (!children(el).length && box.width >= 5 && box.height >= 5 && paints(style)) {
          emit(el, "box", "", style, box);
        }
      }
      if (el.tagName !== "SELECT") children(el).forEach((child) => walk(child, inner));
    };
    if (document.body) walk(document.body, false);
    return { title: document.title, records };
  }

  const paints = (style) =>
    !["normal", "none"].includes(style.content) || hex(style.backgroundColor) || style.backgroundImage !== "none" || parseFloat(style.borderTopWidth) > 0;

  function get(id) {
    const el = elements.get(id)?.deref();
    return el && el.isConnected ? el : null;
  }

  // A point of the element that a click would reach, scrolled into view; or why there is none.
  function point(id) {
    const el = get(id);
    if (!el) return { error: "missing" };
    if (el.disabled) return { error: "disabled" };
    let box = el.getClientRects()[0] || el.getBoundingClientRect();
    if (box.top < 0 || box.left < 0 || box.bottom > innerHeight || box.right > innerWidth || !reach(el, box)) {
      el.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
      box = el.getClientRects()[0] || el.getBoundingClientRect();
    }
    if (!box.width && !box.height) return { error: "hidden" };
    const found = reach(el, box);
    if (found) return found;
    const over = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return { error: "covered", by: over ? textOf(over) || over.tagName.toLowerCase() : "nothing that can be clicked" };
  }

  function reach(el, box) {
    for (const [a, b] of [[0.5, 0.5], [0.25, 0.5], [0.75, 0.5], [0.5, 0.25], [0.5, 0.75], [0.1, 0.5], [0.5, 0.9]]) {
      const x = box.left + box.width * a, y = box.top + box.height * b;
      let hit = document.elementFromPoint(x, y);
      while (hit && hit.shadowRoot) {
        const deeper = hit.shadowRoot.elementFromPoint(x, y);
        if (!deeper || deeper === hit) break;
        hit = deeper;
      }
      if (hit && (el.contains(hit) || (hit.contains(el) && hit !== document.body && hit !== document.documentElement))) {
        return { x, y };
      }
      if (hit && hit.closest("label")?.control === el) return { x, y };
    }
    return null;
  }

  // Typed input goes through the keyboard; "typed" asks for that. Pickers take their value at once.
  function startFill(id, text) {
    const el = get(id);
    if (!el) return { error: "missing" };
    const type = el.tagName === "INPUT" ? el.type : "";
    const isText = el.tagName === "TEXTAREA" || el.isContentEditable || (type && !(type in INPUTS)) ||
      ["search", "number"].includes(type);
    if (el.disabled || el.readOnly) return { error: el.disabled ? "disabled" : "readonly" };
    if (["date", "time", "month", "week", "datetime-local", "color", "range"].includes(type)) {
      el.focus();
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(el, text);
      if (el.value !== text) return { error: "value", now: el.value };
      el.dispatchEvent(new Event("input", { bubbles: true }));
      el.dispatchEvent(new Event("change", { bubbles: true }));
      return { done: true };
    }
    if (!isText) return { error: "not a field" };
    el.focus();
    if (el.isContentEditable) getSelection().selectAllChildren(el);
    else el.select();
    return { typed: true };
  }

  function select(id, option) {
    const el = get(id);
    if (!el) return { error: "missing" };
    if (el.tagName !== "SELECT") return { error: "not a list" };
    if (el.disabled) return { error: "disabled" };
    const found = [...el.options].find((o) => squeeze(o.label) === option) || [...el.options].find((o) => o.value === option);
    if (!found || found.disabled) return { error: "no option", options: [...el.options].map((o) => squeeze(o.label)) };
    el.focus();
    if (el.multiple) found.selected = !found.selected;
    else el.value = found.value;
    if (!el.multiple) found.selected = true; // two options may share a value
    el.dispatchEvent(new Event("input", { bubbles: true }));
    el.dispatchEvent(new Event("change", { bubbles: true }));
    return { done: true };
  }

  function scroll(id, dx, dy) {
    const el = id ? get(id) : document.scrollingElement;
    if (!el) return { error: "missing" };
    const [x, y] = [el.scrollLeft, el.scrollTop];
    el.scrollBy({ left: dx * 0.8 * el.clientWidth, top: dy * 0.8 * el.clientHeight, behavior: "instant" });
    return { moved: el.scrollLeft !== x || el.scrollTop !== y };
  }

  const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))));
  return { observe, point, startFill, select, scroll, frames };
})();
