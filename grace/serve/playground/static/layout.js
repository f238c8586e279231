// Where the branches of a tree go: levels from left to right, children beside their parent.

export const ROW = 19;
export const HALF = { x: 14, y: 8 }; // of a branch
export const TOP = 26; // room for the levels' names

const key = (prefix) => prefix.join("-");

/**
 * Lay a tree out.
 *   tree: as the API gives it.
 *   width: of the drawing, in pixels.
 * Gives {nodes, height, columns}: nodes are {id, parent, depth, x, y, branch, room}, the root first, `room` the
 * pixels for a label; columns the x of every level.
 */
export function layout(tree, width) {
  const nodes = [{ id: "", parent: null, depth: 0, branch: tree.root, children: [] }];
  const byId = new Map([["", nodes[0]]]);
  tree.steps.forEach(({ branches }, t) => {
    for (const branch of branches) {
      const node = { id: key(branch.prefix), parent: key(branch.prefix.slice(0, -1)), depth: t + 1, branch, children: [] };
      nodes.push(node);
      byId.set(node.id, node);
      byId.get(node.parent).children.push(node);
    }
  });
  const levels = tree.steps.length;
  const last = Math.min(250, width * 0.32); // for what the SIDs are called
  const gap = levels ? (width - last - 36) / levels : 0;
  const columns = Array.from({ length: levels + 1 }, (_, depth) => 22 + depth * gap);
  let slot = 0;
  const place = (node) => {
    // What goes on comes first, dead ends after it; each by score, as the API sorts them.
    node.children.sort((a, b) => Number(b.branch.kept) - Number(a.branch.kept));
    node.children.forEach(place);
    const ys = node.children.map(({ y }) => y);
    node.y = ys.length ? (ys[0] + ys.at(-1)) / 2 : TOP + slot++ * ROW + ROW / 2;
    node.x = columns[node.depth];
    node.room = (node.depth === levels ? last : gap - HALF.x) - HALF.x - 8;
  };
  place(nodes[0]);
  return { nodes, columns, height: TOP + slot * ROW + 6 };
}
