// Prompts to begin with: each asks for a text of which a drafter can foretell much.

const CODE = `class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()

    def is_empty(self):
        return len(self.items) == 0

    def size(self):
        return len(self.items)

    def clear(self):
        self.items = []`;

export const EXAMPLES = [
  ["Edit code", `Rename the class Stack to Pile in this code. Answer with the whole code.\n\n\`\`\`python\n${CODE}\n\`\`\``],
  ["List", "Write the multiplication table of 7, from 7 x 1 to 7 x 12, one a line."],
  ["Translate", "Translate into French: The cat is on the table. The dog is under the table. The bird is on the roof."],
  ["JSON", "Write JSON with a list of three users, each with id, name and email."],
];
